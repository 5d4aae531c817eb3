"""How a question set was answered, for people: one benchmark's answers, and two benchmarks' laid beside each other."""

from dataclasses import dataclass

from django.utils.translation import gettext as _

from console.benchmarks.models import Benchmark
from workers.vllm import quality


@dataclass(frozen=True)
class Line:
    """One question with what was expected, and each benchmark's answer and whether it is right."""

    prompt: str
    expected: str
    answers: list[tuple[str, bool] | None]

    @property
    def differs(self) -> bool:
        """True if not all of them were right, or not all of them wrong."""
        return len({one[1] for one in self.answers if one is not None}) > 1


@dataclass(frozen=True)
class Apart:
    """The second benchmark's answers against the first's."""

    verdict: str
    lost: tuple[str, ...]
    won: tuple[str, ...]
    reworded: int


def summary(benchmark: Benchmark) -> str:
    """How many were right; empty where the question set wasn't asked."""
    found = benchmark.answered
    if found is None:
        return ""
    return _("%(right)d of %(all)d right (%(set)s)") % {
        "right": found.right, "all": len(found.answers), "set": found.question_set,
    }  # fmt: skip


def lines(*chosen: Benchmark) -> list[Line]:
    """Every question that one of them was asked, in the set's order; empty where none was."""
    told = [quality.by_key(one.quality.get("answers") or []) for one in chosen]
    if not any(told):
        return []
    known = {one.key: one for one in quality.question_set().questions}
    found = []
    for key in dict.fromkeys(key for own in told for key in own):
        question = known.get(key)
        prompt, expected = (question.prompt, question.expected[0]) if question else (key, "–")
        answers = [(own[key][1], own[key][0]) if key in own else None for own in told]
        found.append(Line(prompt, expected, answers))
    return found


def apart(first: Benchmark, second: Benchmark) -> Apart | None:
    """What became of the answers; None where one of the two wasn't asked, or another set."""
    if not first.quality or first.quality.get("question_set") != second.quality.get("question_set"):
        return None
    told = quality.compare(quality.by_key(first.quality["answers"]), quality.by_key(second.quality["answers"]))
    return Apart(told.verdict, told.lost, told.won, len(told.reworded))
