"""The fixed words in a regular expression: what a text must hold before the expression is worth trying on it."""

import re

_PARTS = re.compile(r"\\.|\[(?:\\.|[^\]])+\][*+?]?|\(\?[P:<!=]*(?:\w+>)?|\(|\)[?*+]?|\||.")
_ESCAPED = re.compile(r"\\([^A-Za-z0-9])")
_NOT_LITERAL = re.compile(r"\\.|\[(?:\\.|[^\]])+\][*+?]?|[^\\][?*]|[^\\]\{\d[^}]*\}|[.^$+]")


def words_of(pattern: str) -> tuple[str, ...]:
    """For each alternative of a pattern, the longest text that every match of it holds; groups are passed over.

    Raises ValueError for an alternative without such a text: it would have to be searched for in every line.
    """
    flat, depth = [""], 0
    for part in _PARTS.findall(pattern):
        depth += part.startswith("(") - part.startswith(")")
        if depth or part.startswith(")"):
            flat[-1] += "\0" if not flat[-1].endswith("\0") else ""
        elif part == "|":
            flat.append("")
        else:
            flat[-1] += part
    longest = [
        max(map(_plain, _NOT_LITERAL.sub("\0", _ESCAPED.sub(_hold, each)).split("\0")), key=len) for each in flat
    ]
    if min(map(len, longest)) < 3:
        raise ValueError(f"no fixed text in an alternative of {pattern!r}: {longest}")
    return tuple(dict.fromkeys(longest))


def _hold(match: re.Match[str]) -> str:
    """An escaped sign as a private character, so that it isn't taken for an operator."""
    return chr(0xE000 + ord(match[1]))


def _plain(text: str) -> str:
    return "".join(chr(ord(c) - 0xE000) if 0xE000 <= ord(c) < 0xE080 else c for c in text)
