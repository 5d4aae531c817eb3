"""Install the programs that tests need beside Python's packages: `python -m tests.tools`, for long ones with `--long`.

As root on Debian and its relatives it installs what is missing; otherwise it says what to install, and the tests that need it
are skipped with the same words.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Tool:
    """A program that some tests need: a package of Debian, or one of Python that needs a C compiler (`by_pip`)."""

    package: str
    purpose: str
    present: Callable[[], bool]
    by_pip: bool = False

    @property
    def missing_text(self) -> str:
        """What a skipped test says."""
        if self.by_pip:
            return f"{self.purpose} need {self.package}: {sys.executable} -m pip install {self.package}"
        return f"{self.purpose} need {self.package}: sudo apt-get install --no-install-recommends {self.package}"


def postgres_bin() -> Path | None:
    """Folder with PostgreSQL's server programs."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    return found[-1].parent if found else None


def chromium() -> str | None:
    """Path of a Chromium."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def libfaketime() -> Path | None:
    """The library that gives a process another clock. Not Debian 12's: its time.sleep fails after a jump."""
    return next(Path(sysconfig.get_path("purelib")).glob("libfaketime/**/libfaketime.so.1"), None)


TOOLS = [
    Tool("chromium", "the browser tests", lambda: chromium() is not None),
    Tool("redis-server", "the tests on Redis itself", lambda: shutil.which("redis-server") is not None),
    Tool("postgresql", "the tests on PostgreSQL", lambda: postgres_bin() is not None),
]
LONG_TOOLS = [Tool("libfaketime", "the tests with a clock that jumps", lambda: libfaketime() is not None, by_pip=True)]


def missing_text(package: str) -> str:
    """What a test says that is skipped for want of a package."""
    return next(tool.missing_text for tool in (*TOOLS, *LONG_TOOLS) if tool.package == package)


def main(*options: str) -> None:
    tools = [*TOOLS, *(LONG_TOOLS if "--long" in options else [])]
    missing = [tool for tool in tools if not tool.present()]
    from_debian = [tool.package for tool in missing if not tool.by_pip]
    if from_debian and os.geteuid() == 0 and shutil.which("apt-get"):
        _install(from_debian)
    for tool in missing:
        if tool.by_pip:
            subprocess.run([sys.executable, "-m", "pip", "install", "-q", tool.package], stdin=subprocess.DEVNULL)
    for tool in missing:
        if not tool.present():
            print(f"tools: {tool.missing_text}", file=sys.stderr)


def _install(packages: list[str]) -> None:
    print(f"tools: installing {' '.join(packages)}", file=sys.stderr, flush=True)
    # No service of the machine's own is started: tests start servers on ports of their own.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *packages]
    for command in (install, ["apt-get", "update", "-q"], install):
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if command is install and done.returncode == 0:
            return
    print(f"tools: apt-get failed: {done.stderr.strip()[-500:]}", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
