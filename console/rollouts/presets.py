"""What an engine upgrade switches on by itself, and how to start without it: one change at a time."""

from collections.abc import Sequence

from workers.vllm.arguments import ArgumentSchema


def is_patch(old: str, new: str) -> bool:
    """True if a version differs from another one in nothing but its last number, upwards: 0.20.0 to 0.20.2."""
    before, after = (_numbers(version) for version in (old, new))
    return len(before) == len(after) == 3 and before[:2] == after[:2] and after > before


def _numbers(version: str) -> tuple[int, ...]:
    release = version.partition("+")[0].partition("rc")[0]
    return tuple(int(part) for part in release.split(".") if part.isdigit())


def newly_on(old: ArgumentSchema, new: ArgumentSchema, arguments: Sequence[str]) -> list[str]:
    """Switches that the new version turns on by default and the old one didn't, as the words that keep them off.

    What the arguments name themselves is left alone: somebody has decided.
    """
    named = {word.partition("=")[0].replace("_", "-") for word in arguments if word.startswith("--")}
    found = []
    for argument in {one.flag: one for one in new.by_flag.values()}.values():
        if argument.default is not True or argument.negative is None or named & set(argument.flags):
            continue
        before = old.by_flag.get(argument.flag)
        if before is None or not before.default:
            found.append(argument.negative)
    return sorted(found)
