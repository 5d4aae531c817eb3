"""The compact table of `vllm serve` arguments that ships with Slipway, and the tool that rebuilds it.

An engine's schema is printed by `workers/vllm/dump_arguments.py`. Neighbouring versions share most of their arguments,
so the table keeps every distinct argument once (`arguments`) and, per version, the list of indices into it in the order
of the engine's own help (`versions`). Nothing is lost but help texts and metavars, which come from the engine itself.

Rebuild it from dumps of every version that should ship:

    python -m workers.vllm.argument_table dumps/0.8.5.json dumps/0.32.0.json > workers/vllm/data/arguments/schemas.json
"""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

KEPT_FIELDS = (
    "dest",
    "flags",
    "group",
    "kind",
    "type",
    "nargs",
    "choices",
    "default",
    "required",
    "deprecated",
    "keys",
)


def pack(dumps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Fold the schemas of several versions into one table; fields that are None or False are left out."""
    records: list[dict[str, Any]] = []
    positions: dict[str, int] = {}
    versions: dict[str, list[int]] = {}
    for dump in sorted(dumps, key=lambda dump: version_key(str(dump["vllm"]))):
        indices: list[int] = []
        for argument in dump["args"]:
            record = {key: argument.get(key) for key in KEPT_FIELDS}
            record = {key: value for key, value in record.items() if value is not None and value is not False}
            text = json.dumps(record, sort_keys=True)
            if text not in positions:
                positions[text] = len(records)
                records.append(record)
            indices.append(positions[text])
        versions[str(dump["vllm"])] = indices
    return {"versions": versions, "arguments": records}


def unpack(table: dict[str, Any], version: str) -> list[dict[str, Any]]:
    """Return the argument records of one version that the table holds; KeyError for another version."""
    records = table["arguments"]
    return [records[index] for index in table["versions"][version]]


def version_key(text: str) -> tuple[int, int, int]:
    """Return (major, minor, patch) of a version such as `0.32.0`, `v0.8` or `0.20.2+cpu`; ValueError for other text."""
    found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?:[.+-]?[a-z]|\.\d|$)", text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a vLLM version such as 0.32.0.")
    major, minor, patch = found.groups(default="0")
    return int(major), int(minor), int(patch)


def main(paths: Sequence[str]) -> int:
    """Write the table made of the given dump files to stdout, one record a line so that changes diff well."""
    table = pack([json.loads(Path(path).read_text(encoding="utf-8")) for path in paths])
    versions = ",\n".join(f"{json.dumps(name)}: {json.dumps(rows)}" for name, rows in table["versions"].items())
    records = ",\n".join(json.dumps(record, ensure_ascii=False) for record in table["arguments"])
    sys.stdout.write(f'{{"versions": {{\n{versions}\n}},\n"arguments": [\n{records}\n]}}\n')
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
