"""Checking a `vllm serve` line against one version: everything wrong with it at once, and the line that would do.

The check reads the words as vLLM's parser would, explains what this version doesn't take, corrects what can be corrected
without guessing, and leaves out what can't. `argument_rules` adds what one argument says about another or about the model.
"""

import difflib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace

from workers.vllm.argument_findings import CheckedArguments, Findings, Surroundings
from workers.vllm.argument_history import (
    Story,
    arity,
    note,
    story_of_deprecated,
    story_of_missing,
    story_of_uncertain,
)
from workers.vllm.argument_knowledge import reserved
from workers.vllm.argument_replacements import replacement
from workers.vllm.argument_rules import check_rules
from workers.vllm.argument_schema import Argument, ArgumentSchema
from workers.vllm.argument_table import version_key
from workers.vllm.argument_values import (
    FALSE_WORDS,
    RefusedValueError,
    Value,
    format_value,
    format_word,
    parse_words,
)
from workers.vllm.argument_words import Use, key_value, merge_keys, read_words

SURE_ENOUGH = 0.9
"""Likeness from which an unknown flag is read as the known one it resembles (a typo, not another idea)."""


def check_arguments(
    schema: ArgumentSchema, words: Sequence[str], surroundings: Surroundings | None = None
) -> CheckedArguments:
    """Check the words that follow `vllm serve`; the model may be missing."""
    surroundings = surroundings or Surroundings()
    check = _Check(schema, words, surroundings)
    check.run()
    return CheckedArguments(
        engine_version=schema.version,
        findings=tuple(check.findings.items),
        argv=tuple(argv_from_values(schema, check.values, model=check.model)),
        model=check.model,
        values=check.values,
        environment=dict(surroundings.environment or {}),
    )


def argv_from_values(schema: ArgumentSchema, values: Mapping[str, Value], *, model: str | None = None) -> list[str]:
    """Write form values as words for `vllm serve`, the model first; RefusedValueError for what argparse can't carry."""
    argv = [model] if model else []
    for dest, value in values.items():
        argv += format_value(schema.by_dest[dest], value)
    return argv


def values_from_argv(schema: ArgumentSchema, argv: Sequence[str]) -> tuple[str | None, dict[str, Value]]:
    """Read words into the model and form values without judging them; what this version doesn't take is left out."""
    check = _Check(schema, argv, Surroundings())
    check.read()
    return check.model, check.values


class _Check:
    def __init__(self, schema: ArgumentSchema, words: Sequence[str], surroundings: Surroundings) -> None:
        self.schema = schema
        self.words = words
        self.surroundings = surroundings
        self.findings = Findings()
        self.values: dict[str, Value] = {}
        self.by_key: dict[str, dict[str, Value]] = {}
        self.named_models: list[str] = []
        self.replaced: list[tuple[str, tuple[str, ...]]] = []
        self.model: str | None = None
        self.correcting = False

    def run(self) -> None:
        self.correcting = True
        self._note_interpolation()
        self.read()
        check_rules(self.schema, self.values, self.findings, self.surroundings)
        self._set_aside_reserved()

    def read(self) -> None:
        reading = read_words(self.schema, self.words, arity)
        for use in reading.uses:
            self._take(use)
        self._lay_keys_over()
        self._place_models(reading.positionals)
        if self.correcting:
            self._apply_replacements()

    def _note_interpolation(self) -> None:
        if self.schema.between is None:
            return
        older, newer = self.schema.between
        before = version_key(self.schema.version) < version_key(older)
        known = f"{'before' if before else 'beyond'} {newer}, which is"
        if older != newer:
            known = f"between {older} and {newer}, whose arguments are"
        self.findings.add(
            "schema.interpolated",
            "",
            f"The arguments of vLLM {self.schema.version} were not looked at; it lies {known} known.",
            "Install that engine on a host, and its own schema is used.",
            severity="info",
        )

    def _take(self, use: Use) -> None:
        argument = use.argument
        if argument is None:
            self._explain_missing(use)
            return
        if use.spelling == "-O.":
            use = self._explain_old_level(use)
        if use.abbreviated:
            meant = argument.negative if use.negated else argument.flag
            message = f"{use.spelling} is short for {meant}; a later version may have two arguments that begin so."
            self.findings.add("args.abbreviated", use.spelling, message, f"Write {meant}.")
        if argument.dest == "model":
            self.named_models += use.words
            return
        story = story_of_deprecated(argument.flag, self.schema)
        if story is not None and self._outdated(use, argument, story):
            return
        uncertain = story_of_uncertain(argument.flag, self.schema)
        if uncertain is not None and use.spelling != "-O":  # every version takes -O3, each in its way
            self._tell(uncertain, argument.flag, certain=False)
        if use.keys:
            self._take_key(use, argument)
        else:
            self._take_value(use, argument)

    def _tell(self, story: Story, flag: str, *, certain: bool = True) -> None:
        self.findings.add(story.code, flag, story.message, story.fix, severity=None if certain else "warning")

    def _outdated(self, use: Use, argument: Argument, story: Story) -> bool:
        """Report a deprecated argument; True when its replacement is put in its place."""
        self._tell(story, argument.flag)
        if not self.correcting or not {"to", "set", "convert"} & note(argument.flag).keys():
            return False
        self.replaced.append((argument.flag, use.words))
        return True

    def _explain_old_level(self, use: Use) -> Use:
        newest = self.schema.has("--logging-config")  # 0.32: `-O.key` was seen to be refused there
        keys = ("mode",) if use.keys == ("level",) else use.keys
        key = ".".join(keys)
        self.findings.add(
            "args.renamed" if newest else "args.deprecated",
            "-O",
            f"-O now sets the optimisation level only; keys of the compilation configuration go with -cc (-cc.{key}).",
            f"Write --compilation-config.{key}.",
        )
        return replace(use, keys=keys)

    def _explain_missing(self, use: Use) -> None:
        flag = use.spelling
        story = story_of_missing(flag, self.schema)
        if story is not None:
            self._tell(story, flag)
            self.replaced.append((flag, use.words))
            return
        if use.candidates:
            fix = f"Write one of them in full: {', '.join(use.candidates)}."
            self.findings.add("args.unrecognized", flag, f"{flag} could mean several arguments.", fix)
            return
        positive = "--" + flag.removeprefix("--no-")
        if flag.startswith("--no-") and positive in self.schema.by_flag:
            message = f"{positive} has no --no- form in vLLM {self.schema.version}; it is off unless it is given."
            self.findings.add("args.unrecognized", flag, message, "Leave it out.")
            return
        near = difflib.get_close_matches(flag, _alike(flag, self.schema), 1, 0.72)
        typo = bool(near) and difflib.SequenceMatcher(None, flag, near[0]).ratio() >= SURE_ENOUGH
        fix = f"Did you mean {near[0]}?" if near else "Leave it out."
        message = f"vLLM {self.schema.version} has no {flag}."
        self.findings.add("args.unrecognized", flag, message, fix)
        if typo:
            self.replaced.append((near[0], use.words))

    def _take_key(self, use: Use, argument: Argument) -> None:
        key = f"{argument.flag}.{'.'.join(use.keys)}"
        if argument.type not in ("json", "json_or_text"):
            message = f"{argument.flag} takes no keys; only JSON arguments are set key by key."
            self.findings.add("args.invalid_value", argument.flag, message, f"Write {argument.flag} VALUE.")
            return
        if not use.words:
            self.findings.add(
                "args.invalid_value", argument.flag, f"{key} needs a value.", "Give one, or leave it out."
            )
            return
        target = self.by_key.setdefault(argument.dest, {})
        if merge_keys(target, use.keys, key_value(use.words[0])):
            self.findings.add("args.duplicate", key, f"{key} is given twice; the last one counts.", "Keep one.")

    def _take_value(self, use: Use, argument: Argument) -> None:
        if use.decimal is not None:
            message = f"vLLM takes {use.decimal} after {argument.flag} for a JSON key, because of its dash and dot."
            self.findings.add("args.invalid_value", argument.flag, message, f"Write {argument.flag}={use.decimal}.")
        try:
            value = self._switch(use, argument) if argument.boolean else parse_words(argument, use.words)
        except RefusedValueError as problem:
            self._refuse(use, argument, problem)
            if problem.suggestion is None:
                return
            try:
                value = parse_words(argument, problem.suggestion)
            except RefusedValueError:
                return
        self._store(argument, value)

    def _switch(self, use: Use, argument: Argument) -> bool:
        if use.refused is None:
            return not use.negated
        off = use.refused.lower() in FALSE_WORDS | {"0"}
        wanted = off == use.negated
        right = (argument.flag if wanted else argument.negative) or ""
        message = f"{argument.flag} is a switch and takes no value; vLLM refuses {use.refused!r}."
        fix = f"Write {right}." if right else f"Leave it out: without it {argument.flag} is off."
        self.findings.add("args.invalid_value", argument.flag, message, fix)
        return wanted

    def _refuse(self, use: Use, argument: Argument, problem: RefusedValueError) -> None:
        fix = "Give a value it takes."
        if problem.suggestion:
            fix = f"Write {argument.flag} {shlex.join(problem.suggestion)}."
        message = str(problem)
        if argument.dest == "dtype" and use.words and problem.suggestion is None:
            message += f" {use.words[0]} isn't the type that is computed in: quantised weights say so in config.json."
            fix = "Use --dtype auto; --quantization quantises at load, --kv-cache-dtype sets the cache's type."
            problem.suggestion = ["auto"]
            self._quantise_at_load(use.words[0].lower())
        self.findings.add(problem.code, argument.flag, message, fix)

    def _quantise_at_load(self, method: str) -> None:
        """Take `--dtype fp8` for what was meant, where the model is known to be unquantised."""
        config = self.surroundings.model_config
        if config is not None and not config.get("quantization_config") and method == "fp8":
            self.replaced.append(("--quantization", ("fp8",)))

    def _store(self, argument: Argument, value: Value) -> None:
        dest = argument.dest
        if argument.kind == "append":
            self.values.setdefault(dest, []).extend(value)
            return
        if dest in self.values:
            first = self.values[dest]
            if argument.boolean and first != value:
                message = f"{argument.flag} and {argument.negative or 'its opposite'} are both given."
                self.findings.add(
                    "args.conflict", argument.flag, message, "Keep the one you mean; vLLM takes the last."
                )
            else:
                message = f"{argument.flag} is given twice; vLLM takes the last one."
                self.findings.add("args.duplicate", argument.flag, message, "Keep one.")
        self.values[dest] = value

    def _lay_keys_over(self) -> None:
        for dest, keyed in self.by_key.items():
            argument = self.schema.by_dest[dest]
            flag = argument.flag
            if dest in self.values:
                message = f"{flag} is given as JSON and key by key; vLLM then forgets the JSON."
                self.findings.add("args.duplicate", flag, message, "Put all keys into one of the two.")
                del self.values[dest]
            self._take_value(Use(flag, argument, (format_word(keyed),)), argument)

    def _place_models(self, positionals: list[str]) -> None:
        named = self.named_models[-1] if self.named_models else None
        self.model = positionals[0] if positionals else named
        for word in positionals[1:]:
            message = f"{word!r} belongs to no argument; only the model stands alone."
            self.findings.add("args.unrecognized", word, message, "Leave it out, or put the argument's name before it.")
        if named is None:
            return
        if positionals and named != positionals[0]:
            self._two_models(positionals[0], named)
        elif not self.surroundings.by_module or positionals:
            message = "vllm serve takes the model as its first word; --model is going away there."
            self.findings.add("args.deprecated", "--model", message, f"Write vllm serve {named}.")

    def _two_models(self, model: str, named: str) -> None:
        message = f"The model is given twice, as {model} and as --model {named}; vLLM refuses the line."
        if "served_model_name" in self.values:
            self.findings.add("args.conflict", "--model", message, "Leave --model out.")
            return
        fix = f"If {named} is the name clients use, write --served-model-name {named}."
        self.findings.add("args.conflict", "--model", message, fix)
        self.values["served_model_name"] = [named]

    def _apply_replacements(self) -> None:
        for flag, given in self.replaced:
            reading = read_words(self.schema, replacement(flag, given, self.values, self.schema), arity)
            self.model = self.model or next(iter(reading.positionals), None)
            for use in reading.uses:
                if use.argument is not None:
                    self._replace(use, use.argument)
        speculative = self.values.get("speculative_config")
        if isinstance(speculative, dict) and any(
            note(flag).get("convert") == "speculative" for flag, _ in self.replaced
        ):
            speculative.setdefault("num_speculative_tokens", 3)  # vLLM asks for it; the old arguments let it out

    def _replace(self, use: Use, argument: Argument) -> None:
        if use.keys:
            target = self.values.setdefault(argument.dest, {})
            if isinstance(target, dict) and use.keys[0] not in target:
                merge_keys(target, use.keys, key_value(use.words[0]))
            return
        if argument.dest in self.values:
            return
        try:
            self.values[argument.dest] = not use.negated if argument.boolean else parse_words(argument, use.words)
        except RefusedValueError as problem:
            self._refuse(use, argument, problem)

    def _set_aside_reserved(self) -> None:
        for dest, entry in reserved().items():
            if dest not in self.values:
                continue
            flag = self.schema.by_dest[dest].flag
            self.findings.add("args.reserved", flag, entry["why"], entry["fix"], severity=entry["severity"])
            del self.values[dest]


def _alike(flag: str, schema: ArgumentSchema) -> list[str]:
    """Narrow the flags that an unknown one may be a slip of: they share a word with it or begin alike."""
    words = set(flag.strip("-").split("-"))
    return [name for name in schema.by_flag if name[:5] == flag[:5] or not words.isdisjoint(name.strip("-").split("-"))]
