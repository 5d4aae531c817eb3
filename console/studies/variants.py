"""The changes that a study tries, as people write them, and what they make of a base's arguments.

A line is an argument and the values to try, apart by bars; or several whole alternatives:

    --max-num-seqs 64 | 128 | 256
    --enable-prefix-caching | --no-enable-prefix-caching
    --max-num-seqs 128 --max-num-batched-tokens 4096
    !--enforce-eager                                    (leave it out)
"""

import itertools
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from django.utils.translation import gettext as _

from console.common.errors import Refused
from console.deployments import arguments_check
from console.deployments.pasting import chunks
from workers.vllm.arguments import ArgumentSchema

MOST_TRIALS = 32
LEFT_OUT = "!"


@dataclass(frozen=True)
class Variant:
    """One change. `words`: what is set, as argv; a word that begins with `!` leaves its argument out."""

    label: str
    words: tuple[str, ...]


def read(text: str, *, grid: bool) -> list[Variant]:
    """The variants that lines describe: each alternative alone, or with `grid` every combination of the lines.

    Refused, with the line, when one can't be read, and when there are more than `MOST_TRIALS`.
    """
    rows = [_alternatives(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
    if not rows:
        raise Refused(_("Write at least one change."), field="changes")
    if grid:
        combined = itertools.product(*rows)
        found = [
            Variant(" ".join(one.label for one in row), tuple(w for one in row for w in one.words)) for row in combined
        ]
    else:
        found = [one for row in rows for one in row]
    found = list({one.words: one for one in found}.values())
    if len(found) > MOST_TRIALS:
        raise Refused(
            _("That makes %(count)d engines to start; %(most)d are tried at most. Leave some values out.")
            % {"count": len(found), "most": MOST_TRIALS},
            field="changes",
        )
    return found


def _alternatives(number: int, line: str) -> list[Variant]:
    found: list[Variant] = []
    flag = ""
    for part in line.split("|"):
        try:
            words = shlex.split(part)
        except ValueError as error:
            raise Refused(_("Line %(number)d: %(why)s.") % {"number": number, "why": error}, field="changes") from None
        if not words:
            continue
        if words[0].startswith(("--", f"{LEFT_OUT}--", "-O")):
            flag = words[0].partition("=")[0]
        elif flag:
            words = [flag, *words]
        else:
            raise Refused(
                _("Line %(number)d begins with no argument: “%(text)s”. Write, for example, --max-num-seqs 64 | 128.")
                % {"number": number, "text": words[0]}, field="changes",
            )  # fmt: skip
        found.append(Variant(" ".join(words), tuple(words)))
    return found


def applied(base: Sequence[str], words: Sequence[str], schema: ArgumentSchema | None) -> list[str]:
    """The base's arguments with a variant's in their place; the rest stays word by word."""
    changed = chunks([word.removeprefix(LEFT_OUT) for word in words])
    gone = {_name(chunk[0], schema) for chunk in changed}
    left_out = {_name(word.removeprefix(LEFT_OUT), schema) for word in words if word.startswith(f"{LEFT_OUT}-")}
    kept = [word for chunk in chunks(base) if _name(chunk[0], schema) not in gone for word in chunk]
    return [*kept, *(word for chunk in changed if _name(chunk[0], schema) not in left_out for word in chunk)]


def same(first: Sequence[str], second: Sequence[str], schema: ArgumentSchema | None) -> bool:
    """True if an engine would be started with the same arguments, whatever their order and spelling."""
    if schema is None:
        return sorted(chunks(first)) == sorted(chunks(second))
    return arguments_check.values_of(schema, first) == arguments_check.values_of(schema, second)


def _name(word: str, schema: ArgumentSchema | None) -> str:
    """What an argument is called, its negation and its other spellings included."""
    flag = word.partition("=")[0]
    flag = flag.replace("_", "-") if flag.startswith("--") else flag
    if schema is not None and (known := schema.by_flag.get(flag)) is not None:
        return known.dest
    return flag.removeprefix("--no-").removeprefix("--").replace("-", "_")
