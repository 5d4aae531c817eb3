"""A decision tree: questions in a fixed order, each answered from facts; the first answer that ends it is the verdict."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from django.utils.functional import Promise
from django.utils.translation import gettext as _

from console.common.states import Look
from console.oncall.tree_facts import Facts


class Answer(StrEnum):
    """What a question came to."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Found:
    """The answer to one question: the fact that it rests on, and what to do if it ends the tree."""

    answer: Answer
    fact: str
    next: str = ""
    acts: tuple[str, ...] = ()
    """Keys of `tree_views.ACTS`: buttons that carry the next step out."""


@dataclass(frozen=True)
class Question:
    """One question of a tree. `ends_on`: with this answer the cause is found, and no further question is asked."""

    text: str | Promise
    look: Callable[[Facts], Found]
    ends_on: Answer = Answer.YES


@dataclass(frozen=True)
class Tree:
    """A symptom and the questions that lead from it to a cause."""

    key: str
    title: str | Promise
    symptom: str | Promise
    questions: tuple[Question, ...]
    otherwise: str | Promise
    """What to do if no question ended it."""
    otherwise_acts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """A question as it was answered; `found` None: it was not asked, because an earlier one ended the tree."""

    number: int
    question: str | Promise
    found: Found | None
    is_end: bool = False

    @property
    def look(self) -> Look:
        """How the answer is shown: what ends the tree in red, what rules a cause out in green."""
        if self.found is None:
            return Look(_("not asked"), "circle", "grey")
        words = {Answer.YES: _("yes"), Answer.NO: _("no"), Answer.UNKNOWN: _("not known")}
        word = words[self.found.answer]
        if self.is_end:
            return Look(word, "alert-circle", "red")
        if self.found.answer is Answer.UNKNOWN:
            return Look(word, "help", "amber")
        return Look(word, "check", "green")


@dataclass(frozen=True)
class Walk:
    """A tree that was walked with the facts of one instance."""

    tree: Tree
    rows: tuple[Row, ...]
    next: str | Promise
    acts: tuple[str, ...]
    is_found: bool
    """True if a question ended it."""

    @property
    def unknown(self) -> int:
        """How many questions could not be answered."""
        return sum(row.found is not None and row.found.answer is Answer.UNKNOWN for row in self.rows)


def walk(tree: Tree, facts: Facts) -> Walk:
    """Ask one question after the other until one ends it."""
    rows: list[Row] = []
    end: Found | None = None
    for number, question in enumerate(tree.questions, 1):
        if end is not None:
            rows.append(Row(number, question.text, None))
            continue
        found = question.look(facts)
        is_end = found.answer == question.ends_on
        rows.append(Row(number, question.text, found, is_end))
        end = found if is_end else None
    if end is not None:
        return Walk(tree, tuple(rows), end.next, end.acts, is_found=True)
    return Walk(tree, tuple(rows), tree.otherwise, tree.otherwise_acts, is_found=False)
