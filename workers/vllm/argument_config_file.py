"""vLLM's `--config FILE`: arguments from YAML, put where vLLM puts them.

Source: `_pull_args_from_config` of vLLM's argument parser: keys are flags without dashes, true is a bare flag, false its
`--no-` form, lists are several words, mappings JSON; what stands on the command line wins.
"""

import json
from collections.abc import Callable, Sequence

from workers.vllm.argument_findings import Finding
from workers.vllm.argument_schema import ArgumentSchema

CONFIG = "--config"


def with_config_file(
    schema: ArgumentSchema, words: Sequence[str], read: Callable[[str], str] | None
) -> tuple[list[str], list[Finding]]:
    """Replace `--config FILE` by the arguments in it; where it can't be read it is left out, with a finding.

    A line that kept the file would start with arguments that nobody has checked. `read` returns a file's text or raises
    OSError; None where files are out of reach.
    """
    path, rest = _take_config(words)
    if path is None:
        return list(words), []
    if not path.endswith((".yaml", ".yml")):
        message = f"{CONFIG} takes a .yaml or .yml file; vLLM refuses {path}."
        return rest, [
            Finding("args.invalid_value", "error", CONFIG, message, "Rename the file, or give its arguments.")
        ]
    problem = "Slipway doesn't read files of other machines"
    if read is not None:
        try:
            given = {_name(word) for word in rest if word.startswith("--")}
            extra = [word for key, value in _mapping(read(path)).items() for word in _words(schema, key, value, given)]
        except (OSError, ValueError) as error:
            problem = str(error)
        else:
            model = 1 if rest and not rest[0].startswith("-") else 0
            return [*rest[:model], *extra, *rest[model:]], []
    message = f"The arguments in {path} weren't read and are left out: {problem}."
    return rest, [Finding("args.config_unread", "warning", CONFIG, message, "Give its arguments on the line.")]


def _take_config(words: Sequence[str]) -> tuple[str | None, list[str]]:
    for position, word in enumerate(words):
        if word == CONFIG and position + 1 < len(words):
            return words[position + 1], [*words[:position], *words[position + 2 :]]
        if word.startswith(CONFIG + "="):
            return word.removeprefix(CONFIG + "="), [*words[:position], *words[position + 1 :]]
    return None, list(words)


def _mapping(text: str) -> dict[str, object]:
    import yaml  # slow to import, and few lines need it

    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"it is no YAML ({error})") from error
    if not isinstance(content, dict):
        raise ValueError("it holds no mapping of arguments")  # noqa: TRY004 - the caller treats all bad content alike
    return {str(key): value for key, value in content.items()}


def _name(word: str) -> str:
    return word.split("=", 1)[0].split(".", 1)[0].lstrip("-").removeprefix("no-").replace("_", "-")


def _words(schema: ArgumentSchema, key: str, value: object, given: set[str]) -> list[str]:
    flag = "--" + key
    if _name(flag) in given:
        return []
    if value is True:
        return [flag]
    if value is False:
        negative = "--no-" + key.replace("_", "-")
        return [negative] if negative in schema.by_flag else []
    if isinstance(value, list):
        return [flag, *(str(item) for item in value)] if value else []
    return [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
