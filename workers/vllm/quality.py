"""A small fixed set of questions with exact answers: enough to see that a variant of an engine has become worse.

It is no benchmark of models. The same model answers it before and after a change (quantised weights, another KV cache type,
other kernels), at temperature 0, and the two are laid beside each other question by question. The questions are our own.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

ANSWER_TOKENS = 24
"""The limit of an answer: they are asked for in a word, a number or a letter."""
THINKING_TOKENS = 2048
"""The limit for a model that thinks before it answers."""

_DATA = Path(__file__).parent / "data" / "questions.json"
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_SURE = 0.05
"""So seldom would that many answers turn from right to wrong (or back) by chance."""


@dataclass(frozen=True)
class Question:
    """One question. `fact`: the answer names it; `number`: it ends with it; `choice`: the first letter that stands alone."""

    key: str
    kind: Literal["fact", "number", "choice"]
    prompt: str
    expected: tuple[str, ...]


@dataclass(frozen=True)
class QuestionSet:
    """A set under a name that changes with its content."""

    name: str
    questions: tuple[Question, ...]


@cache
def question_set() -> QuestionSet:
    """The set that is shipped."""
    content = json.loads(_DATA.read_text(encoding="utf-8"))
    rows = (Question(one["key"], one["kind"], one["prompt"], tuple(one["expected"])) for one in content["questions"])
    return QuestionSet(content["name"], tuple(rows))


def is_right(question: Question, answer: str) -> bool:
    """True if an answer says what is expected, whatever it says around it."""
    first = next((line for line in answer.strip().splitlines() if line.strip()), "").lower()
    if question.kind == "choice":
        found = re.search(r"(?<!\w)[\(\*]*([a-d])(?!\w)", first)
        return found is not None and found[1] in question.expected
    if question.kind == "number":
        numbers = [one.replace(",", "") for one in _NUMBER.findall(first)]
        if numbers:
            return numbers[-1] in question.expected
    return any(re.search(rf"(?<!\w){re.escape(one)}(?!\w)", first) for one in question.expected)


@dataclass(frozen=True)
class QualityDifference:
    """Two results of one set. `lost` and `won` are keys of questions; `verdict` says whether that is more than chance."""

    lost: tuple[str, ...]
    won: tuple[str, ...]
    reworded: tuple[str, ...]
    """Answered as rightly as before, in other words."""
    verdict: Literal["same", "noise", "better", "worse"]


def compare(first: Mapping[str, tuple[bool, str]], second: Mapping[str, tuple[bool, str]]) -> QualityDifference:
    """Lay two results beside each other: key to whether it was right, and the answer. Only what both have counts.

    Whether it is real is McNemar's exact test: if nothing had changed, a question that turned would have turned either way
    with the same chance.
    """
    shared = [key for key in first if key in second]
    lost = tuple(key for key in shared if first[key][0] and not second[key][0])
    won = tuple(key for key in shared if second[key][0] and not first[key][0])
    reworded = tuple(key for key in shared if first[key][0] == second[key][0] and first[key][1] != second[key][1])
    if not lost and not won:
        return QualityDifference(lost, won, reworded, "same")
    if _chance(len(lost), len(won)) >= _SURE:
        return QualityDifference(lost, won, reworded, "noise")
    return QualityDifference(lost, won, reworded, "better" if len(won) > len(lost) else "worse")


def _chance(lost: int, won: int) -> float:
    turned = lost + won
    tail = sum(math.comb(turned, index) for index in range(min(lost, won) + 1)) / float(2**turned)
    return min(1.0, 2 * tail)


def by_key(answers: Sequence[Mapping[str, object]]) -> dict[str, tuple[bool, str]]:
    """Stored answers (`workers.benchmark_payloads.QualityAnswer`) as `compare` takes them."""
    return {str(one["question"]): (bool(one["right"]), str(one["answer"])) for one in answers}
