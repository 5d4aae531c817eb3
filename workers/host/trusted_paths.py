"""Which paths that a person types may be run from: below the host's trusted roots, and writable by nobody else."""

import os
import stat
from pathlib import Path

from workers.host.failures import StepFailedError
from workers.host_config import HostConfig


def check_trusted(config: HostConfig, path: str, *, what: str) -> Path:
    """Return `path` without links on the way; raises `StepFailedError` (`path.…`) if code must not come from there.

    The host's own configuration says what is trusted (`trusted_roots`), so that the console can't widen it.
    """
    asked = Path(path)
    if not asked.is_absolute() or ".." in asked.parts:
        raise StepFailedError(
            "path.not_absolute",
            f"{path} is no absolute path",
            next_step="Give the whole path on the host, without “..”.",
        )
    # A virtual environment's python is a link to the system's: where the link lies is what counts.
    real = asked.parent.resolve() / asked.name if asked.is_file() else asked.resolve()
    roots = [root.expanduser().resolve() for root in config.trusted_roots]
    if not any(root in (real, *real.parents) for root in roots):
        raise StepFailedError(
            "path.not_trusted",
            f"{real} lies outside of what this host trusts for {what} ({', '.join(map(str, roots)) or 'nothing'})",
            next_step="Move it there, or add its directory to trusted_roots in the host's configuration file.",
        )
    if not real.exists():
        raise StepFailedError(
            "path.not_found", f"there is no {real} on this host", next_step="Correct the path, then try again."
        )
    _refuse_writable_by_others(real)
    return real


def _refuse_writable_by_others(path: Path) -> None:
    for one in (path, path.parent):
        facts = one.stat()
        if facts.st_uid not in (0, os.getuid()) or facts.st_mode & stat.S_IWOTH:
            raise StepFailedError(
                "path.writable_by_others",
                f"others than this agent's user may write to {one}: they could put their own code there",
                next_step="Give it to root or to the agent's user, and take the right to write from everybody else.",
            )
