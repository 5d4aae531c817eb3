"""Comparing answers to one question: are they the same, how alike are they, and why may they differ at temperature 0."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Likeness:
    """How alike two answers are: `share` from 0 to 1 by words; `where` says in words where they part."""

    same: bool
    share: float
    where: str


def compare_answers(before: str, now: str) -> Likeness:
    """Compare by words; white space doesn't count."""
    old, new = before.split(), now.split()
    if old == new:
        return Likeness(same=True, share=1.0, where="nowhere")
    common = next(
        (index for index, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new))
    )
    share = difflib.SequenceMatcher(a=old, b=new, autojunk=False).ratio()
    where = "from the first word on" if common == 0 else f"different after {common} words"
    return Likeness(same=False, share=share, where=where)


def explain_difference(texts: Sequence[str], arguments: Sequence[str]) -> str:
    """Why answers to one question may differ at temperature 0, the likeliest reason that fits what was seen.

    `texts` are the answers in the order in which they were asked for, one after the other; `arguments` the engine's.
    """
    if any(argument.startswith(("--speculative-config", "--speculative_config")) for argument in arguments):
        return "speculative decoding accepts draft tokens by batch, which changes rounding"
    if len(texts) > 2 and len(set(texts[1:])) == 1 and "--no-enable-prefix-caching" not in arguments:
        return (
            "the first was computed whole, the later ones took their prompt from the prefix cache: other kernel shapes "
            "round differently"
        )
    return (
        "kernels that are not batch-invariant round differently with each mix of requests, and one token that is "
        "nearly a tie changes all that follow"
    )
