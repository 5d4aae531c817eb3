"""Reading the words that follow `vllm serve`: which argument each belongs to, as vLLM's own parser sees it.

vLLM's parser is argparse with liberties: underscores in names, unique prefixes, `-O3`, JSON keys given one by one
(`--hf-overrides.a.b=1`, `--x.list+=1,2`). Unlike argparse this reader never stops: what it can't place stays in the
result as a use without an argument, so that everything wrong with a line is found at once.

Source: `FlexibleArgumentParser.parse_args` of vLLM 0.8 to 0.32 and CPython's argparse.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from workers.vllm.argument_schema import Argument, ArgumentSchema, is_negative_number
from workers.vllm.argument_values import FALSE_WORDS, TRUE_WORDS, Value, human_int

MANY = -1


@dataclass(frozen=True)
class Use:
    """One argument as it was typed.

    `spelling` is the flag with dashes for underscores, `argument` None when this version hasn't it. `keys` are the JSON
    keys after a dot. `refused` is the value given to a switch that takes none (`=false`). `candidates` are the flags an
    ambiguous prefix could mean. `decimal` is a value such as -0.5 that stands alone: vLLM takes it for a JSON key.
    """

    spelling: str
    argument: Argument | None
    words: tuple[str, ...] = ()
    negated: bool = False
    abbreviated: bool = False
    refused: str | None = None
    keys: tuple[str, ...] = ()
    candidates: tuple[str, ...] = ()
    decimal: str | None = None


@dataclass
class Reading:
    """All uses in the order of the line, and the words that belong to none: the first is the model."""

    uses: list[Use] = field(default_factory=list)
    positionals: list[str] = field(default_factory=list)


def read_words(schema: ArgumentSchema, words: Sequence[str], arity: Callable[[str], int | None]) -> Reading:
    """Read a command line. `arity` says how many words an argument of *another* version takes, None when unknown."""
    return _Reader(schema, list(words), arity).read()


def merge_keys(target: dict[str, Value], keys: Sequence[str], value: Value) -> bool:
    """Put a value under nested keys, extending lists; return True if it replaced another value."""
    *path, last = keys
    for key in path:
        inner = target.get(key)
        if not isinstance(inner, dict):
            inner = target[key] = {}
        target = inner
    present = last in target
    if present and isinstance(target[last], list) and isinstance(value, list):
        target[last] = target[last] + value
        return False
    target[last] = value
    return present


def key_value(word: str) -> Value:
    """Read the value of a single JSON key: JSON, else a number such as 80g, else text."""
    try:
        return json.loads(word)
    except ValueError:
        pass
    try:
        return human_int(word)
    except ValueError:
        return word


class _Reader:
    def __init__(self, schema: ArgumentSchema, words: list[str], arity: Callable[[str], int | None]) -> None:
        self.schema = schema
        self.words = words
        self.arity = arity
        self.position = 0
        self.reading = Reading()

    def read(self) -> Reading:
        while self.position < len(self.words):
            word = self.words[self.position]
            self.position += 1
            if word == "--":
                self.reading.positionals += self.words[self.position :]
                break
            if not self._is_option(word):
                self.reading.positionals.append(word)
            elif word.startswith("-O"):
                self._read_level(word)
            else:
                self._read_option(word)
        return self.reading

    def _is_option(self, word: str) -> bool:
        if not word.startswith("-") or word == "-" or is_negative_number(word):
            return False
        return " " not in word.split("=", 1)[0]

    def _read_option(self, word: str) -> None:
        name, equals, text = word.partition("=")
        given = text if equals else None
        if "." in name:
            base, *keys = name.removesuffix("+").split(".")
            value = given if given is not None else self._next_word()
            if name.endswith("+") and value is not None:
                value = json.dumps(value.split(","))
            self._add(base, value, tuple(keys))
        elif name.startswith("--") or name in self.schema.by_flag or len(name) < 3 or self._prefix_of_short(name):
            self._add(name, given, ())
        elif name[:2] in self.schema.by_flag:
            self._add(name[:2], word[2:].removeprefix("="), ())  # -qawq
        else:
            self._add(name, given, ())

    def _prefix_of_short(self, name: str) -> bool:
        return any(flag.startswith(name) for flag in self.schema.by_flag)

    def _next_word(self) -> str | None:
        if self.position == len(self.words):
            return None
        self.position += 1
        return self.words[self.position - 1]

    def _read_level(self, word: str) -> None:
        """Read -O3, -O=3, -O 3 and -O.key=value: the optimisation level, or older vLLM's compilation configuration."""
        newer = self.schema.by_flag.get("--optimization-level")
        older = self.schema.by_dest.get("compilation_config")
        if word.startswith("-O."):
            name, equals, text = word.partition("=")
            value = text if equals else self._next_word()
            keys = tuple(name.removesuffix("+").split(".")[1:])
            spelling = "-O" if "-O" in self.schema.by_flag else "-O."
            self.reading.uses.append(Use(spelling, older, () if value is None else (value,), keys=keys))
            return
        level = word[2:].removeprefix("=")
        if not level and self.position < len(self.words) and self.words[self.position] in ("0", "1", "2", "3"):
            level = self._next_word() or ""
        if not level:
            self._add("-O", None, ())
        elif newer is not None:
            self.reading.uses.append(Use("-O", newer, (level,)))
        else:
            self.reading.uses.append(Use("-O", older, (level,), keys=("level",)))

    def _add(self, name: str, given: str | None, keys: tuple[str, ...]) -> None:
        spelling = name.replace("_", "-") if name.startswith("--") else name
        argument = self.schema.by_flag.get(spelling)
        flag, candidates = spelling, []
        if argument is None and self.arity(spelling) is None:
            candidates = self.schema.abbreviations(spelling)
            if len({id(self.schema.by_flag[candidate]) for candidate in candidates}) == 1:
                flag = candidates[0]
                argument = self.schema.by_flag[flag]
        if argument is None:
            words = () if keys else self._take_unknown(spelling, given)
            self.reading.uses.append(Use(spelling, None, words, keys=keys, candidates=tuple(candidates)))
            return
        refused = self._take_refused(given) if argument.boolean else None
        # A single key's value has been taken with it
        words = () if argument.boolean or (keys and given is None) else self._take(argument, given)
        alone = [word for word in words if given is None and "." in word and is_negative_number(word)]
        self.reading.uses.append(
            Use(
                spelling,
                argument,
                words,
                negated=flag == argument.negative,
                abbreviated=flag != spelling,
                refused=refused,
                keys=keys,
                decimal=alone[0] if alone else None,
            )
        )

    def _take(self, argument: Argument, given: str | None) -> tuple[str, ...]:
        if given is not None:
            return (given,)
        most = len(self.words) if argument.nargs in ("+", "*") else 1
        return self._take_words(most)

    def _take_unknown(self, spelling: str, given: str | None) -> tuple[str, ...]:
        if given is not None:
            return (given,)
        arity = self.arity(spelling)
        return self._take_words(len(self.words) if arity == MANY else 1 if arity is None else arity)

    def _take_refused(self, given: str | None) -> str | None:
        if given is not None:
            return given
        following = self.words[self.position].lower() if self.position < len(self.words) else ""
        return self._next_word() if following in TRUE_WORDS | FALSE_WORDS else None

    def _take_words(self, most: int) -> tuple[str, ...]:
        start = self.position
        while self.position - start < most and self.position < len(self.words):
            if self.words[self.position] == "--" or self._is_option(self.words[self.position]):
                break
            self.position += 1
        return tuple(self.words[start : self.position])
