"""An environment with the stand-in for llm-compressor in it, as someone made it by hand."""

import shutil
import subprocess
import sys
from pathlib import Path

VERSION = "0.14.0"
_PACKAGE = Path(__file__).with_name("llmcompressor")
_BESIDE = {
    "datasets.py": "class Dataset(list):\n    from_list = classmethod(lambda cls, rows: cls(rows))\n",
    "transformers.py": (
        "class AutoTokenizer:\n"
        "    from_pretrained = classmethod(lambda cls, path: cls())\n"
        "    def __call__(self, text, truncation, max_length):\n"
        "        return {'input_ids': [len(word) for word in text.split()][:max_length]}\n"
    ),
}
"""What llm-compressor brings along, as far as its data goes through it."""


def make_environment(folder: Path) -> Path:
    """Make it; returns its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    packages = next((folder / "lib").glob("python3.*/site-packages"))
    shutil.copytree(_PACKAGE, packages / "llmcompressor", ignore=shutil.ignore_patterns("__pycache__"))
    for name, content in _BESIDE.items():
        (packages / name).write_text(content)
    metadata = packages / f"llmcompressor-{VERSION}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: llmcompressor\nVersion: {VERSION}\n")
    return folder / "bin" / "python"


def wheel_files() -> dict[str, str]:
    """The package's files, by their path in a wheel."""
    return {str(path.relative_to(_PACKAGE.parent)): path.read_text() for path in _PACKAGE.rglob("*.py")}
