"""Install the programs that tests need beside Python's packages: `python -m tests.tools`.

As root on Debian and its relatives it installs what is missing; otherwise it says what to install, and the tests that need it
are skipped with the same words.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Tool:
    """A program that some tests need."""

    package: str
    purpose: str
    present: Callable[[], bool]

    @property
    def missing_text(self) -> str:
        """What a skipped test says."""
        return f"{self.purpose} need {self.package}: sudo apt-get install --no-install-recommends {self.package}"


def postgres_bin() -> Path | None:
    """Folder with PostgreSQL's server programs."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    return found[-1].parent if found else None


def chromium() -> str | None:
    """Path of a Chromium."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def libfaketime() -> Path | None:
    """The library that gives a process another clock."""
    return next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)


TOOLS = [
    Tool("chromium", "the browser tests", lambda: chromium() is not None),
    Tool("redis-server", "the tests on Redis itself", lambda: shutil.which("redis-server") is not None),
    Tool("postgresql", "the tests on PostgreSQL", lambda: postgres_bin() is not None),
    Tool("faketime", "the tests with a clock that jumps", lambda: libfaketime() is not None),
]


def missing_text(package: str) -> str:
    """What a test says that is skipped for want of a package."""
    return next(tool.missing_text for tool in TOOLS if tool.package == package)


def main() -> None:
    missing = [tool for tool in TOOLS if not tool.present()]
    if not missing:
        return
    if os.geteuid() == 0 and shutil.which("apt-get"):
        _install([tool.package for tool in missing])
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
    main()
