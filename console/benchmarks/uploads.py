"""Files of prompts that people bring, read into one shape: ShareGPT JSON, JSONL, or one prompt on each line."""

import hashlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.core.files.uploadedfile import UploadedFile
from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from console.access import services as access
from console.access.models import User
from console.benchmarks.models import Dataset
from console.common.errors import Refused
from workers.benchmark_payloads import MOST_PROMPTS

MOST_FILE_BYTES = 50 * 2**20
MOST_KEPT_BYTES = 4 * 2**20
"""What travels to a host with each benchmark; a larger file is sampled evenly."""
_PROMPT_KEYS = ("prompt", "question", "instruction", "input", "text")
_ASKERS, _ANSWERERS = ("human", "user"), ("gpt", "assistant", "chatgpt")


@dataclass(frozen=True)
class Read:
    """What a file holds. `rows` are `Prompt`s or `Turn`s; `found` counts those of the whole file."""

    form: str
    rows: list[dict[str, Any]]
    found: int


def read(data: bytes) -> Read:
    """Read a file's content. Refused, with the line, if it is neither ShareGPT, JSONL nor text."""
    if len(data) > MOST_FILE_BYTES:
        raise Refused(
            _("The file has %(size)d MiB; %(most)d are taken at most. Take a part of it.")
            % {"size": len(data) >> 20, "most": MOST_FILE_BYTES >> 20},
            field="upload",
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Refused(_("The file is not text in UTF-8."), field="upload") from None
    stripped = text.lstrip()
    if stripped.startswith("["):
        form, rows = "conversations", _conversations(stripped)
    elif stripped.startswith("{"):
        form, rows = "prompts", list(_json_lines(text))
    else:
        form, rows = "prompts", [{"prompt": line.strip()} for line in text.splitlines() if line.strip()]
    if not rows:
        raise Refused(_("There is no prompt in it."), field="upload")
    return Read(form, _sampled(rows), len(rows))


def store(upload: "UploadedFile[Any]", *, actor: User) -> Dataset:
    """Keep an upload. The same file again is the same dataset."""
    data = upload.read()
    sha256 = hashlib.sha256(data).hexdigest()
    if known := Dataset.objects.filter(team=actor.team, sha256=sha256).first():
        return known
    found = read(data)
    name = (upload.name or "").rpartition("/")[2][:100] or _("upload")
    for number in range(1, 100):
        try:
            with transaction.atomic():
                dataset = Dataset.objects.create(
                    team_id=actor.team_id, name=name if number == 1 else f"{name} ({number})", form=found.form,
                    rows=found.rows, found=found.found, sha256=sha256, uploaded_by=actor,
                )  # fmt: skip
        except IntegrityError:
            continue
        access.record(actor=actor, action="benchmark.upload", target=dataset.name, rows=found.found)
        return dataset
    raise Refused(_("There are too many files called %s. Rename it.") % name, field="upload")


def own_prompts(text: str) -> list[dict[str, Any]]:
    """Prompts that were typed: one in each block, blocks are separated by an empty line; without one, one on each line."""
    blocks = [block.strip() for block in text.replace("\r\n", "\n").split("\n\n")]
    found = [block for block in blocks if block]
    if len(found) == 1:
        found = [line.strip() for line in found[0].split("\n") if line.strip()]
    return [{"prompt": one} for one in found[:MOST_PROMPTS]]


def _conversations(text: str) -> list[dict[str, Any]]:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise Refused(_("The file begins like JSON and isn't: %s") % error, field="upload") from None
    rows = []
    for one in content if isinstance(content, list) else []:
        turns = one.get("conversations") or one.get("messages") if isinstance(one, dict) else None
        if isinstance(turns, list) and (turn := _first_turn(turns)) is not None:
            rows.append(turn)
    if not rows:
        raise Refused(
            _("No conversation was found: ShareGPT has a list of {conversations: [{from: human, value: …}, "
              "{from: gpt, value: …}]}."), field="upload")  # fmt: skip
    return rows


def _first_turn(turns: list[Any]) -> dict[str, Any] | None:
    """The first question with its answer."""
    said = [_who_said_what(turn) for turn in turns if isinstance(turn, dict)]
    for asker, answerer in itertools.pairwise(said):
        if asker[0] in _ASKERS and answerer[0] in _ANSWERERS and asker[1].strip() and answerer[1].strip():
            return {"question": asker[1], "answer": answerer[1]}
    return None


def _who_said_what(turn: dict[str, Any]) -> tuple[str, str]:
    return str(turn.get("from") or turn.get("role") or ""), str(turn.get("value") or turn.get("content") or "")


def _json_lines(text: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            raise Refused(_("Line %d is no JSON object.") % number, field="upload") from None
        prompt = next((row[key] for key in _PROMPT_KEYS if isinstance(row, dict) and isinstance(row.get(key), str)), "")
        if not prompt.strip():
            raise Refused(
                _("Line %(number)d has no prompt; one of these is needed: %(names)s.")
                % {"number": number, "names": ", ".join(_PROMPT_KEYS)},
                field="upload",
            )
        tokens = row.get("output_tokens") or row.get("max_tokens")
        yield {"prompt": prompt} | ({"output_tokens": tokens} if isinstance(tokens, int) and tokens > 0 else {})


def _sampled(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Evenly spaced rows, so many that they can be sent to a host."""
    size = sum(len(value) for row in rows for value in row.values() if isinstance(value, str))
    keep = min(len(rows), MOST_PROMPTS, max(1, len(rows) * MOST_KEPT_BYTES // max(1, size)))
    return [rows[index * len(rows) // keep] for index in range(keep)]
