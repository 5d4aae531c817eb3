"""What lies in an engine's environment, read from its files: starting a Python and torch would take seconds."""

import re
from pathlib import Path

from workers.host.engines import Engine
from workers.host_facts import EngineEnvironment


def read_engine(engine: Engine) -> EngineEnvironment:
    """Python, torch and wheel of one engine; what isn't found stays empty."""
    prefix = Path(engine.python).parent.parent
    packages = _packages(prefix)
    known = EngineEnvironment(
        key=engine.key,
        version=engine.version,
        platform=engine.platform,
        python=_setting(prefix, "version") or _setting(prefix, "version_info"),
        system_packages=_setting(prefix, "include-system-site-packages") == "true",
    )
    if packages is None:
        return known
    return known.model_copy(
        update={
            "triton": (packages / "triton").is_dir(),
            "wheel_tag": _wheel_tag(packages, engine.distribution),
            **torch_build(_text(packages / "torch/version.py")),
        }
    )


def torch_build(version_file: str) -> dict[str, str]:
    """Version and build from the text of torch/version.py."""
    version = _assigned(version_file, "__version__")
    if not version:
        return {}
    local = version.partition("+")[2]
    cuda, hip, xpu = (_assigned(version_file, name) for name in ("cuda", "hip", "xpu"))
    if hip or local.startswith("rocm"):
        build = "rocm"
    elif cuda or local.startswith("cu"):
        build = "cuda"
    else:
        build = "xpu" if xpu or local.startswith("xpu") else "cpu"
    if build == "cuda" and not cuda:  # +cu128
        cuda = f"{local[2:-1]}.{local[-1]}"
    return {"torch": version, "torch_build": build, "torch_cuda": cuda if build == "cuda" else ""}


def _assigned(text: str, name: str) -> str:
    match = re.search(rf"(?m)^{name}\s*(?::[^=]+)?=\s*['\"]([^'\"]*)['\"]", text)
    return match[1] if match else ""


def _packages(prefix: Path) -> Path | None:
    return next(iter(sorted((prefix / "lib").glob("python3*/site-packages"), reverse=True)), None)


def _wheel_tag(packages: Path, distribution: str) -> str:
    name = distribution.replace("-", "_")
    for folder in packages.glob(f"{name}-*.dist-info"):
        tags = re.findall(r"(?m)^Tag: \S+?-\S+?-(\S+)$", _text(folder / "WHEEL"))
        if tags:
            return str(tags[-1])
    return ""


def _setting(prefix: Path, name: str) -> str:
    match = re.search(rf"(?mi)^{name}\s*=\s*(\S+)", _text(prefix / "pyvenv.cfg"))
    return match[1] if match else ""


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
