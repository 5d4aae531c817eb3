"""Pasted command lines: from a blog, a shell history, `docker run` or a systemd unit to the words after `vllm serve`.

A line is split as a shell would, continuation lines, prompts, comments and typographic quotes included; of several
commands the one that starts vLLM counts. Variables set in the text are filled in, the rest of the text is not run.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from workers.vllm.argument_check import check_arguments
from workers.vllm.argument_config_file import with_config_file
from workers.vllm.argument_findings import CheckedArguments, Finding, Surroundings
from workers.vllm.argument_schema import ArgumentSchema
from workers.vllm.argument_table import version_key

SERVER_MODULES = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server")
DEMO_MODULE = "vllm.entrypoints.api_server"
CONTAINER_PROGRAMS = ("docker", "podman", "nerdctl")
CONTAINER_SWITCHES = re.compile(
    r"-[ditP]+|--(detach|interactive|tty|rm|init|privileged|read-only|publish-all|no-healthcheck|oom-kill-disable|"
    r"disable-content-trust|sig-proxy|quiet|help)(=.*)?"
)
TYPOGRAPHY = str.maketrans({"\u201c": '"', "\u201d": '"', "\u2018": "'", "\u2019": "'", "\u00a0": " ", "\u200b": ""})
LAUNCHERS = frozenset(
    {"sudo", "env", "nohup", "exec", "time", "numactl", "taskset", "nice", "uv", "uvx", "poetry", "export"}
)
SHELLS = ("bash", "sh", "zsh", "dash")
SERVE = "vllm serve"
CONTAINER = "container"


@dataclass
class CommandLine:
    """What a text says: the words for vLLM and the variables set for it.

    `module` is how it is started: "vllm serve", a Python module, "container" (the image decides), or "" for bare words.
    """

    words: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    module: str = ""
    findings: list[Finding] = field(default_factory=list)


def parse_command_line(text: str, schema: ArgumentSchema, surroundings: Surroundings | None = None) -> CheckedArguments:
    """Turn a pasted text into checked arguments: form values, the variables it sets, and all that doesn't hold."""
    return _checked(read_command_line(text), schema, surroundings)


def check_words(
    words: Sequence[str], schema: ArgumentSchema, surroundings: Surroundings | None = None
) -> CheckedArguments:
    """Check words that a shell has already split; they may begin with the program, a launcher or a container."""
    if len(words) == 1 and len(words[0].split()) > 1:
        return parse_command_line(words[0], schema, surroundings)
    if not starts_with_program(words):
        return _checked(CommandLine(list(words)), schema, surroundings)
    return _checked(_from_words(list(words)), schema, surroundings)


def starts_with_program(words: Sequence[str]) -> bool:
    """Say whether the words are a whole command rather than what follows `vllm serve`."""
    if not words:
        return False
    name = PurePosixPath(words[0]).name
    if _is_setting(words[0]) or words[0].startswith("ExecStart=") or name in LAUNCHERS:
        return True
    if name.startswith("python") or name in CONTAINER_PROGRAMS or name in SHELLS:
        return True
    if words[0] == "-m" or words[0].startswith("vllm.entrypoints."):
        return True
    return (name == "vllm" and words[1:2] == ["serve"]) or _is_subcommand(words)


def _is_subcommand(words: Sequence[str]) -> bool:
    """`serve MODEL …`: the program's name was left out."""
    return words[0] == "serve" and len(words) > 1 and not words[1].startswith("-")


def read_command_line(text: str) -> CommandLine:
    """Find the command that starts vLLM in a text; without one, its first command counts as the arguments alone."""
    text, environment = _plain_text(text)
    commands, findings = _commands(text)
    lines = [_from_words(words) for words in commands]
    line = next((line for line in lines if line.module), None) or next((line for line in lines if line.words), None)
    for other in lines:
        if not other.words and not other.module:
            environment.update(other.environment)  # a line of its own: MODEL=…, export HF_HOME=…
    line = line or CommandLine()
    line.findings = [*findings, *line.findings]
    line.environment = {**environment, **line.environment}
    line.words = [_filled(word, line.environment) for word in line.words]
    line.findings += [_unknown_variable(word) for word in line.words if re.search(r"\$\{?[A-Za-z_]", word)]
    return line


def _checked(line: CommandLine, schema: ArgumentSchema, surroundings: Surroundings | None) -> CheckedArguments:
    given = surroundings or Surroundings()
    by_module = line.module in SERVER_MODULES or line.module == CONTAINER
    given = replace(
        given, environment={**(given.environment or {}), **line.environment}, by_module=given.by_module or by_module
    )
    words, unread = with_config_file(schema, line.words, given.read_file)
    checked = check_arguments(schema, words, given)
    program = _program_finding(line.module, schema)
    findings = (*line.findings, *([program] if program else []), *unread, *checked.findings)
    return replace(checked, findings=findings)


def _program_finding(module: str, schema: ArgumentSchema) -> Finding | None:
    newest = version_key(schema.version) >= (0, 32, 0)  # looked at: the demo server is gone there, the other one warns
    fix = "Start it with vllm serve; Slipway does."
    if module == DEMO_MODULE:
        gone = "is gone since vLLM 0.32 at the latest" if newest else "is a demo"
        message = f"{module} {gone}: it never had the OpenAI API, /metrics or most arguments."
        return Finding(
            "args.removed" if newest else "args.deprecated", "error" if newest else "warning", module, message, fix
        )
    if module == SERVER_MODULES[0] and newest:
        message = f"Starting vLLM as python -m {module} is deprecated."
        return Finding("args.deprecated", "warning", module, message, fix)
    return None


def _plain_text(text: str) -> tuple[str, dict[str, str]]:
    """Undo what pages and units do to a command; return it with the variables that `Environment=` lines set."""
    text = text.translate(TYPOGRAPHY).replace("\r\n", "\n")
    text = re.sub(r"[\\`^][ \t]*\n\s*", " ", text)
    text = re.sub(r"(?<=\s)[\u2013\u2014](?=[A-Za-z])", "--", text)
    environment: dict[str, str] = {}
    if "ExecStart=" not in text:
        return text, environment
    for line in re.findall(r"(?m)^\s*Environment=(.*)$", text):
        for setting in _split(line)[0]:
            name, _, value = setting.partition("=")
            environment[name] = value
    started = re.search(r"(?m)ExecStart=[-@:+!|]*(.*)$", text)
    return (started[1] if started else ""), environment


def _commands(text: str) -> tuple[list[list[str]], list[Finding]]:
    """Split a text into commands of words, without prompts, comments, redirections and what runs beside them."""
    lines = [bare for bare in map(_without_prompt, text.split("\n")) if bare.strip()]
    commands: list[list[str]] = []
    findings: list[Finding] = []
    for row in _rows(lines):
        words, broken = _split(row)
        if broken:
            message = "A quote is opened and never closed, so words may be split wrongly."
            findings.append(Finding("text.unbalanced_quotes", "warning", "", message, "Close the quote."))
        commands.append([])
        for word in words:
            if re.fullmatch(r"[;&|]+", word):
                commands.append([])
            else:
                commands[-1].append(word)
    return [_without_redirections(command) for command in commands if command], findings


def _without_prompt(row: str) -> str:
    """Take a shell's prompt away; a line that begins with # is a comment unless a program follows root's prompt."""
    bare = re.sub(r"^\s*(?:[$>%]\s+|\(\w+\)\s*[$#]\s+)", "", row)
    if not bare.lstrip().startswith("#"):
        return bare
    bare = bare.lstrip().removeprefix("#")
    return bare if bare.startswith(" ") and starts_with_program(bare.split()) else ""


def _rows(lines: list[str]) -> list[str]:
    """Join lines that continue the one before: a quote still open, or arguments on lines of their own."""
    rows: list[str] = []
    for line in lines:
        if rows and (_split(rows[-1])[1] or line.lstrip().startswith("-")):
            rows[-1] += "\n" + line if _split(rows[-1])[1] else " " + line
        else:
            rows.append(line)
    return rows


def _split(text: str) -> tuple[list[str], bool]:
    text = re.sub(r"(?<=\s)\d(?=[<>])", "", text)  # 2>&1: the descriptor isn't a word
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|<>")
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        return list(lexer), False
    except ValueError:
        return text.split(), True


def _without_redirections(words: list[str]) -> list[str]:
    kept: list[str] = []
    target_follows = False
    for word in words:
        if target_follows:
            target_follows = False
        elif re.fullmatch(r"&?[<>]+&?", word):
            target_follows = True
        else:
            kept.append(word)
    return kept


def _is_setting(word: str) -> bool:
    return re.match(r"[A-Za-z_]\w*=", word) is not None and not word.startswith("ExecStart=")


def _from_words(words: list[str]) -> CommandLine:
    """Read one command: variables, launchers, a shell or container around it, then vLLM's own words."""
    if words and words[0].startswith("ExecStart="):
        words = [words[0].removeprefix("ExecStart=").lstrip("-@:+!|"), *words[1:]]
    if words and _is_subcommand(words):
        words = ["vllm", *words]
    elif words and words[0].startswith("vllm.entrypoints."):
        words = ["-m", *words]
    line = CommandLine()
    for position, word in enumerate(words):
        name, rest = PurePosixPath(word).name, words[position + 1 :]
        if name == "vllm" and rest[:1] == ["serve"]:
            line.module, line.words = SERVE, rest[1:]
        elif word == "-m" and rest and rest[0].split(".")[0] == "vllm":
            line.module, line.words = rest[0], rest[1:]
            if rest[:2] in (["vllm.entrypoints.cli.main", "serve"], ["vllm", "serve"]):
                line.module, line.words = SERVE, rest[2:]
        elif name in CONTAINER_PROGRAMS and rest:
            line = _from_container(rest, line)
        elif name in SHELLS and len(rest) > 1 and re.fullmatch(r"-\w*c", rest[0]):
            line = read_command_line(rest[1])
        elif _is_setting(word):
            line.environment[word.partition("=")[0]] = word.partition("=")[2]
        if line.module:
            return line
    settings_only = all(_is_setting(word) or word == "export" for word in words)
    line.words = [] if settings_only else list(words)
    return line


def _from_container(words: list[str], line: CommandLine) -> CommandLine:
    """Read `docker run` options up to the image; what follows it is for vLLM, whichever way the image starts it."""
    position = 2 if words[0] == "container" else 1
    while position < len(words) and words[position].startswith("-"):
        option, equals, value = words[position].partition("=")
        position += 1
        if CONTAINER_SWITCHES.fullmatch(option):
            continue
        if not option.startswith("--") and len(option) > 2:  # -p8000:8000
            option, value = option[:2], (words[position - 1])[2:]
        elif not equals and position < len(words):
            value = words[position]
            position += 1
        if option in ("-e", "--env"):
            line.environment[value.partition("=")[0]] = value.partition("=")[2]
    image, inner = "".join(words[position : position + 1]), words[position + 1 :]
    nested = _from_words(inner)
    if nested.module:
        nested.environment = {**line.environment, **nested.environment}
        return nested
    if "vllm" in image:
        line.module, line.words = CONTAINER, inner
    return line


def _filled(word: str, environment: dict[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        return environment.get(found[1] or found[2], found[0])

    return re.sub(r"\$(?:\{(\w+)\}|(\w+))", value, word)


def _unknown_variable(word: str) -> Finding:
    message = f"{word} names a shell variable that the text doesn't set."
    return Finding("text.unknown_variable", "error", "", message, "Write its value.")
