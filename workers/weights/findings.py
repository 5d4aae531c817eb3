"""What a verification says about a model directory: codes, severities, and the collector of findings.

The listed codes and their severities are fixed: the console, the alerts and people's scripts match on them. A code that is
not listed in `CODES` can't be reported.
"""

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How much a finding weighs: an error holds the launch, a warning is shown, an info only explains."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


_E, _W, _I = Severity.ERROR, Severity.WARNING, Severity.INFO

CODES: dict[str, Severity] = {
    "path.not_found": _E,
    "path.not_model_directory": _E,
    "config.missing": _E,
    "config.invalid_json": _E,
    "arch.unsupported": _E,
    "weights.missing": _E,
    "weights.truncated": _E,
    "weights.trailing_bytes": _E,
    "weights.header_invalid": _E,
    "weights.lfs_pointer": _E,
    "weights.shard_missing": _E,
    "weights.index_mismatch": _E,
    "weights.overlapping_offsets": _E,
    "weights.tensor_missing": _E,
    "weights.tensor_unexpected": _E,
    "weights.shape_mismatch": _E,
    "weights.dtype_unexpected": _E,
    "weights.pickle_only": _E,
    "weights.duplicate_formats": _W,
    "tokenizer.missing": _E,
    "tokenizer.invalid": _E,
    "tokenizer.vocab_mismatch": _E,
    "chat_template.missing": _W,
    "chat_template.invalid": _E,
    "quantization.unknown": _E,
    "quantization.config_conflict": _E,
    "quantization.scale_missing": _E,
    "quantization.scale_shape": _E,
    "checksum.mismatch": _E,
    "checksum.sources_disagree": _E,
    "code.remote_required": _W,
    "context.rope_inconsistent": _W,
    "generation_config.invalid": _W,
    # Codes beside the fixed ones.
    "path.unreadable": _E,
    "path.symlink_outside": _E,
    "path.not_regular_file": _E,
    "path.too_many_files": _W,
    "file.unreadable": _E,
    "file.changed": _E,
    "arch.no_table": _I,
    "config.duplicate_keys": _W,
    "config.token_id_out_of_range": _W,
    "weights.tensor_duplicate": _E,
    "weights.index_absent": _W,
    "weights.index_size": _I,
    "weights.dtype_mixed": _W,
    "weights.mistral_format": _I,
    "weights.draft_layers_absent": _I,
    "weights.gguf": _I,
    "tokenizer.config_missing": _W,
    "checksum.file_invalid": _E,
    "checksum.file_unlisted": _W,
    "checksum.not_checked": _W,
    "values.not_finite": _E,
    "values.all_zero": _W,
    "values.scale_not_positive": _E,
    "guide_format.sound": _I,
    "guide_format.broken": _W,
    "verify.internal_error": _E,
    "verify.interrupted": _E,
}

# A hostile checkpoint can break every one of a million tensors; a report of that size helps nobody.
MOST_FINDINGS_PER_CODE = 60
MOST_NAMES_PER_FINDING = 6
_MOST_LETTERS_PER_NAME = 160


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found: its code, the file it is about (relative to the directory), and what to do next."""

    code: str
    severity: Severity
    file: str | None
    message: str
    fix: str

    def as_json(self) -> dict[str, str | None]:
        """The finding's JSON object, keys in the documented order."""
        return {
            "code": self.code,
            "severity": self.severity.value,
            "file": self.file,
            "message": self.message,
            "fix": self.fix,
        }


def printable(text: str, *, most_letters: int = _MOST_LETTERS_PER_NAME) -> str:
    """A name from a file made safe to show: no control characters or lone surrogates, and not endlessly long."""
    shown = text if len(text) <= most_letters else text[: most_letters - 1] + "…"
    if shown.isprintable():
        return shown
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in shown)


def listed(names: list[str]) -> str:
    """Names for a message: the first few, then how many more."""
    shown = ", ".join(printable(name, most_letters=500) for name in names[:MOST_NAMES_PER_FINDING])
    more = len(names) - MOST_NAMES_PER_FINDING
    return f"{shown} and {more:,} more" if more > 0 else shown


class Findings:
    """Collects findings in the order they are made; one per code, file and message, and only so many per code."""

    def __init__(self) -> None:
        self._items: list[Finding] = []
        self._seen: set[tuple[str, str | None, str]] = set()
        self._count: dict[str, int] = {}

    def add(self, code: str, file: str | None, message: str, fix: str) -> None:
        """Record one finding; its severity is the code's."""
        key = (code, file, message)
        if key in self._seen:
            return
        count = self._count.get(code, 0)
        self._count[code] = count + 1
        if count >= MOST_FINDINGS_PER_CODE:
            return
        self._seen.add(key)
        shown = None if file is None else printable(file, most_letters=1024)
        self._items.append(Finding(code, CODES[code], shown, message, fix))

    def has(self, code: str, file: str | None = None) -> bool:
        """Whether the code was reported (for this file, if one is given)."""
        return any(item.code == code and (file is None or item.file == file) for item in self._items)

    def counts(self) -> dict[str, int]:
        """How often each code was found, those over the limit of shown findings included."""
        return dict(self._count)

    def sorted(self) -> tuple[Finding, ...]:
        """All findings, errors first, otherwise in the order in which they were made."""
        order = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2}
        return tuple(sorted(self._items, key=lambda item: order[item.severity]))
