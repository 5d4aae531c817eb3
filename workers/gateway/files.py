"""Files that only their owner may read, replaced in one step."""

import os
from pathlib import Path


def replace_private(path: Path, text: str) -> None:
    """Write the file at `path`: a reader sees the old text or the new, and nobody else may read either at any moment."""
    draft = path.with_name(f"{path.name}.new")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    draft.replace(path)
