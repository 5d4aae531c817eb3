"""Run a command with DATABASE_URL set to a private, throw-away PostgreSQL: `python -m tests.on_postgres pytest tests/jobs`."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.tools import missing_text, postgres_bin

# The machine doesn't crash under the tests, so nothing waits for the disk. A server that does crash keeps what it has
# committed: Slipway acknowledges a host's report by that, and the host forgets it.
NO_DISK = "-c fsync=off -c full_page_writes=off -c max_connections=60"


@contextmanager
def private_postgres() -> Iterator[str]:
    """Start a server on loopback, yield its URL, remove it again."""
    programs = postgres_bin()
    if programs is None:
        raise FileNotFoundError(missing_text("postgresql"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # Not the folder of the test run: the server's own user has to reach it.
    folder = Path(tempfile.mkdtemp(prefix="slipway-postgres-"))
    data = folder / "data"
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres", "postgres")
        run(
            programs / "initdb",
            "-D",
            data,
            "-U",
            "slipway",
            "--auth=trust",
            "--no-sync",
            "-E",
            "UTF8",
            "--locale=C.UTF-8",
        )
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} {NO_DISK}"
        run(programs / "pg_ctl", "-D", data, "-w", "-s", "-l", folder / "log", "-o", options, "start")
        try:
            yield f"postgres://slipway@127.0.0.1:{port}/postgres"
        finally:
            run(programs / "pg_ctl", "-D", data, "-m", "immediate", "-s", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(*command: str | Path) -> None:
    """Run one of PostgreSQL's programs, which refuse to run as root."""
    as_its_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    subprocess.run([*as_its_user, *map(str, command)], check=True, stdout=subprocess.DEVNULL, cwd="/")


def main(command: list[str]) -> int:
    """Run the command; without PostgreSQL it says what to install, and that is not a failure."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))  # the server must not be left running
    try:
        with private_postgres() as url:
            return subprocess.run(command, env={**os.environ, "DATABASE_URL": url}, check=False).returncode
    except FileNotFoundError as missing:
        print(f"not run: {missing}", file=sys.stderr)
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
