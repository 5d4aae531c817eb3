"""What a check of arguments finds, and what it answers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from workers.vllm.argument_values import Value

Severity = Literal["error", "warning", "info"]
WARNINGS = frozenset({"args.duplicate", "args.deprecated", "args.abbreviated"})
"""Codes that never stop a start: vLLM takes these lines."""


@dataclass(frozen=True)
class Finding:
    """One thing about a command line: what is so, and what to do. `flag` is "" where it isn't about one argument."""

    code: str
    severity: Severity
    flag: str
    message: str
    fix: str

    def as_dict(self) -> dict[str, str]:
        """Return the finding as the command's JSON has it."""
        return {
            "code": self.code,
            "severity": self.severity,
            "flag": self.flag,
            "message": self.message,
            "fix": self.fix,
        }


@dataclass
class Findings:
    """Findings in the order they were made; the severity follows from the code unless one is given."""

    items: list[Finding] = field(default_factory=list)

    def add(self, code: str, flag: str, message: str, fix: str, *, severity: Severity | None = None) -> None:
        """Record a finding."""
        self.items.append(Finding(code, severity or ("warning" if code in WARNINGS else "error"), flag, message, fix))


@dataclass(frozen=True)
class Surroundings:
    """What the check may know beyond the line.

    `model_config`: the parsed config.json, or None. `environment`: variables set for the engine. `port_taken`: says
    whether a TCP port is in use on this machine; None leaves ports alone. `read_file`: returns the text of a file on this
    machine or raises OSError, for `--config`; None where files are out of reach. `by_module`: the line was given to
    `python -m …api_server`, where `--model` is the right way to name the model.
    """

    model_config: Mapping[str, Any] | None = None
    environment: Mapping[str, str] | None = None
    port_taken: Callable[[int], bool] | None = None
    read_file: Callable[[str], str] | None = None
    by_module: bool = False


@dataclass(frozen=True)
class CheckedArguments:
    """The answer of a check.

    `argv` is the corrected line in its plainest form: the model first, full flags, merged JSON, numbers written out,
    without what Slipway sets itself. `values` are the same as form values by name; `model` is None when the line has none.
    """

    engine_version: str
    findings: tuple[Finding, ...]
    argv: tuple[str, ...]
    model: str | None
    values: Mapping[str, Value]
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """True when nothing found keeps the engine from starting with these arguments."""
        return not any(finding.severity == "error" for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """Return what `slipway args check --json` prints."""
        return {
            "ok": self.ok,
            "engine_version": self.engine_version,
            "findings": [finding.as_dict() for finding in self.findings],
            "argv": list(self.argv),
        }
