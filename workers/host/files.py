"""Small JSON files that several processes share: replaced in one step, read without locks. Standard library only."""

import errno
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_DISK_FULL_SECONDS = 0.5


def write_json(path: Path, content: Any, *, mode: int = 0o600) -> None:
    """Replace the file at `path`: a reader sees the old content or the new, never a half. The directory must exist."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(content, file)
    temporary.replace(path)


def insist(write: Callable[[], object]) -> None:
    """Call `write` until there is room for it: a full disk must not end the one who looks after a serving engine."""
    while True:
        try:
            write()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            time.sleep(_DISK_FULL_SECONDS)
        else:
            return


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object at `path`; `None` when there is no such file, or what it holds is not a JSON object.

    A torn file can only come from a machine that lost power; every owner of such a file can do without its content.
    """
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return content if isinstance(content, dict) else None
