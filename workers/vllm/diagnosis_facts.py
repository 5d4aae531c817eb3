"""What a log says, collected line by line in constant memory: causes, deaths, the first unknown exception, milestones."""

import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache

from workers.vllm.diagnosis_lines import LONGEST_LINE, Level, LogLine, clean
from workers.vllm.diagnosis_narrowing import DEATH_WORDS, Positions, Wanted, first_at, lines_with, narrowed, rare_stems
from workers.vllm.diagnosis_repeats import Repeats
from workers.vllm.diagnosis_rules import RULES, Rule
from workers.vllm.diagnosis_wrappers import DEATH_NOTICES, DEATHS, EXCEPTION, WRAPPERS

# Lines that rules may look back at: a traceback's frames with vLLM's prefix and blank lines in between.
_LOOK_BACK = 60
_EVIDENCE_PER_CAUSE = 5
# "401 Client Error." says less than the line after it.
_SAME_MESSAGE_LINES = 6
_TERSE = 40

# A line that says nothing of these can't matter. Every rule's lines must pass (tests check each wording).
_STEMS = (
    b"rror",
    b"ERROR",
    b"xception",
    b"illed",
    b"atchdog",
    b"imed out",
    b"died",
    b"Input should",
    b"gated",
    b"is restricted",
    b"hat template",
    b"fallen off",
    b"is lost",
    b"ismatch",
    b"NVIDIA driver",
    b"space left",
    b"NCCL WARN",
    b"code 137",
    b"disk space",
    b"egmentation fault",
    b"Segfault",
    b"core dumped",
    b"custom code",
    b"gpu-name",
    b"current PyTorch",
    b"offline mode",
)
# Lines that call themselves INFO are most of a log. Only these words make one worth a look.
_INFORMATIVE = (
    b"startup complete",
    b"hut",  # "shutdown triggered", "Shutting down"
    b"eceived signal",
    b"non-default args",
    b"block found",
    b"memory: -",
    b"PU blocks: 0",
    b"Xid",
)
# After these, what was found before may count no more.
_MAKES_NEW = (b"startup complete", b"non-default args")
# How sure a code's rules can be, and whether one of them has something to say on its fix.
_SUREST = {code: max(r.confidence for r in RULES if r.code == code) for code in {rule.code for rule in RULES}}
_HINTED = frozenset(rule.code for rule in RULES if rule.hint)
_READ_CLOSELY = 4_000
_READ_CLOSELY_BYTES = 4_000_000
# What a milestone's line holds: quicker to see than the expression.
_MILESTONE_WORDS = ("startup complete", "hut", "eceived", "non-default args", "LLM engine", "API server version")
_STARTED = re.compile(r"Application startup complete")
_ASKED_TO_STOP = re.compile(r"shutdown triggered|[Rr]eceived signal|^Shutting down$|received SIG(?:TERM|INT)")
_NEW_PROCESS = re.compile(r"non-default args:|LLM engine \(v\d|vLLM API server version")
_NEW_START = re.compile(r"non-default args:")
_TRIES_AGAIN = re.compile(r"\b[Rr]etrying (?:in )?\d|\b[Ww]ill retry\b")
# What people asked and were told: any words can stand there.
_QUOTES_PEOPLE = re.compile(r"(?:Received|Added|Generated) (?:request|response)\b")
_FRAME = re.compile(r'\s{2}File "|\s{3,}')


@dataclass(frozen=True, slots=True)
class Evidence:
    """A line of the log, by its number (from 1), as it stands there but for colours and trailing space."""

    line: int
    text: str


@dataclass(slots=True)
class Cause:
    """One cause that the log shows, where it was first seen and how sure that is.

    `soft` is true if a line only warned of it: a start that succeeds afterwards refutes it. `start` counts the starts
    that the log holds, so that what one of them says isn't taken for a consequence of another.
    """

    code: str
    line: int
    message: str
    confidence: float
    soft: bool = False
    hint: str = ""
    evidence: list[Evidence] = field(default_factory=list)
    start: int = 0


@dataclass(slots=True)
class _Wanting:
    """Evidence that wants the next lines too, and how many."""

    evidence: list[Evidence]
    count: int

    def take(self, lines: Iterable[bytes], first: int) -> bool:
        """Take the lines that aren't empty until there are enough; returns whether there are."""
        for number, raw in enumerate(lines, first):
            if self.count <= 0:
                break
            if next(clean(raw)).text.strip():
                self.evidence.append(Evidence(number, _shown(raw)))
                self.count -= 1
        return self.count <= 0


# A warning of these stays true although the engine started.
_LASTING = frozenset({"chat_template.missing", "gpu.xid", "gpu.lost", "process.killed_by_oom"})


class Facts:
    """Collects facts from lines in order; holds a few dozen lines at most, however long the log is."""

    def __init__(self) -> None:
        self.line_count = 0
        self.starts = 0
        self.causes: dict[str, Cause] = {}
        self.death: Cause | None = None
        self.death_notice: Cause | None = None
        self.exception: Cause | None = None
        self.complaint: Cause | None = None
        self.survived: Cause | None = None
        self.started: Evidence | None = None
        self.asked_to_stop: Evidence | None = None
        self.recent: deque[Evidence] = deque(maxlen=_LOOK_BACK)
        self._rules: Sequence[Rule] = RULES
        self._repeats = Repeats()
        self._wanted_last = Wanted()
        self._byte_count = 0
        self._wanting: list[_Wanting] = []

    def observe(self, block: bytes) -> None:
        """Take the next whole lines: with `\\n` between them, without one at the end."""
        # UTF-16 that somebody cut into lines: without its zeros it is ASCII again.
        block = block.replace(b"\0", b"")
        # The first lines are all read; short ones behind them needn't be because they came in the same piece.
        if self._reads_closely and block.count(b"\n") > 2 * _READ_CLOSELY:
            *head, block = block.split(b"\n", _READ_CLOSELY)
            self.observe(b"\n".join(head))
        informative = first_at(block, _INFORMATIVE)
        stems = rare_stems(block, _STEMS)
        if not self._reads_closely and not self._wanting and not informative and stems == {}:
            # Not even split into lines: most of a long log is like this.
            self.line_count += block.count(b"\n") + 1
        else:
            self._read(block.split(b"\n"), block, informative, stems)
        self._byte_count += len(block)
        tail = block.rsplit(b"\n", _LOOK_BACK)[-_LOOK_BACK:]
        self.recent.extend(
            Evidence(number, _shown(raw)) for number, raw in enumerate(tail, self.line_count - len(tail) + 1)
        )

    @property
    def _reads_closely(self) -> bool:
        """A start fails within its first lines: those are all read, so that no wording depends on the stems."""
        return self.line_count < _READ_CLOSELY and self._byte_count < _READ_CLOSELY_BYTES

    def _read(self, lines: list[bytes], block: bytes, informative: Positions, stems: Positions | None) -> None:
        closely = _READ_CLOSELY - self.line_count if self._reads_closely else 0
        first = self.line_count + 1
        self.line_count += len(lines)
        if self._wanting:
            self._wanting = [wanting for wanting in self._wanting if not wanting.take(lines, first)]
        shown = cache(lambda index: _shown(lines[index]))
        found = lines_with(block, lines, informative)
        for index in sorted(found | self._complaints(lines, block, stems, closely)):
            if self._repeats.is_news(lines[index]):
                self._examine(lines, index, first, shown)

    def _complaints(self, lines: list[bytes], block: bytes, stems: Positions | None, closely: int) -> set[int]:
        """Indexes of the lines that may complain: quick searches over all of them at once, since hardly any line does.

        `closely`: how many lines are read whatever they hold.
        """
        self._rules = RULES
        if stems is None:
            if closely <= 0 and not any(word in block for word in _MAKES_NEW):
                return self._suspects(lines, block)
            stems = first_at(block, _STEMS)
        found = lines_with(block, lines, stems) | set(range(min(closely, len(lines))))
        return {index for index in found if _may_complain(lines[index])}

    def _suspects(self, lines: list[bytes], block: bytes) -> set[int]:
        """Of a crowded block the lines that hold what is still wanted, but for what the log has said often."""
        wanted = self._wanted()
        if wanted.is_more_than(self._wanted_last):
            self._repeats.forget()
        self._wanted_last = wanted
        indexes = self._repeats.fresh(block)
        if len(indexes) < len(lines):
            lines = [lines[index] for index in indexes]
            block = b"\n".join(lines)
        found, self._rules = narrowed(block, lines, wanted)
        suspects = {at for at in found if _may_complain(lines[at])}
        self._repeats.pass_over([line for at, line in enumerate(lines) if at not in suspects])
        return {indexes[at] for at in suspects}

    def _wanted(self) -> Wanted:
        settled = {code for code, cause in self.causes.items() if _is_settled(cause)}
        unknown = self.exception is None
        return Wanted(settled, self.death is None, unknown, unknown and self.complaint is None)

    def _examine(self, lines: list[bytes], index: int, first: int, shown: Callable[[int], str]) -> None:
        number = first + index
        raw = Evidence(number, shown(index))

        def before(count: int) -> list[Evidence]:
            near = range(max(0, index - count), index)
            held = [Evidence(first + i, shown(i)) for i in near]
            return ([*self.recent][-(count - len(held)) :] if len(held) < count else []) + held

        for line in clean(lines[index]):
            wanting = self._judge(line, raw, before)
            if wanting is not None and not wanting.take((lines[i] for i in range(index + 1, len(lines))), number + 1):
                self._wanting.append(wanting)

    def _judge(self, line: LogLine, raw: Evidence, before: Callable[[int], list[Evidence]]) -> "_Wanting | None":
        """Record what the line says; returns the evidence that wants the next lines too."""
        text = line.text
        if not text or _FRAME.match(text) or self._is_milestone(text, raw) or self.asked_to_stop:
            return None
        if line.level is Level.INFO and _QUOTES_PEOPLE.match(text):
            return None
        rules = _matching_rules(self._rules, text, informative=line.level is Level.INFO)
        for rule in rules:
            if rule.context is None or any(rule.context.search(earlier.text) for earlier in before(_LOOK_BACK)):
                return self._record(rule, line, raw, before)
        if line.level is Level.INFO:
            return None
        may_be_death = self.death is None and any(word in text for word in DEATH_WORDS)
        if may_be_death and DEATHS.search(text):
            self.death = Cause("engine.died", raw.line, text.strip(), 0.8, evidence=[raw])
        elif may_be_death and self.death_notice is None and DEATH_NOTICES.search(text):
            self.death_notice = Cause("engine.died", raw.line, text.strip(), 0.7, evidence=[raw])
        if line.level is Level.WARNING or self.exception is not None or WRAPPERS.search(text):
            return None
        return self._record_unknown(text, line.level, raw, before)

    def _is_milestone(self, text: str, raw: Evidence) -> bool:
        if not any(word in text for word in _MILESTONE_WORDS):
            return False
        if _STARTED.search(text):
            self.started = raw
            self.causes = {code: cause for code, cause in self.causes.items() if not self._is_overcome(cause)}
            # The engine got over it, so it was no cause; it is kept for the case that nothing else explains an end.
            self.survived = self.exception or self.complaint or self.survived
            self.exception = self.complaint = None
            return True
        if _NEW_PROCESS.search(text):
            self.starts += _NEW_START.search(text) is not None
            self.started = self.started if not self.asked_to_stop else None
            self.asked_to_stop = None
            return True
        if _ASKED_TO_STOP.search(text):
            # After a death the API server shuts down by itself and says so in the same words.
            if self.death is None and self.death_notice is None and not self.causes:
                self.asked_to_stop = self.asked_to_stop or raw
            return True
        return False

    def _is_overcome(self, cause: Cause) -> bool:
        """Whether a start that succeeds now refutes the cause: it was a warning, or an error that was tried again."""
        tried_again = cause.start == self.starts > 0 and self.death is None and self.death_notice is None
        return (cause.soft or tried_again) and cause.code not in _LASTING

    def _record(
        self, rule: Rule, line: LogLine, raw: Evidence, before: Callable[[int], list[Evidence]]
    ) -> "_Wanting | None":
        soft = (line.level <= Level.WARNING and "NCCL" not in line.text) or _TRIES_AGAIN.search(line.text) is not None
        known = self.causes.get(rule.code)
        if known is not None:
            known.confidence = max(known.confidence, rule.confidence)
            known.soft = known.soft and soft
            known.hint = known.hint or _hint(rule, line.text)
            message = message_of(line.text)
            if raw.line - known.line <= _SAME_MESSAGE_LINES and len(known.message) < _TERSE <= len(message):
                known.message = message
            if len(known.evidence) < _EVIDENCE_PER_CAUSE and raw not in known.evidence:
                known.evidence.append(raw)
            return None
        cause = Cause(
            rule.code,
            raw.line,
            message_of(line.text),
            rule.confidence,
            soft,
            _hint(rule, line.text),
            [raw],
            self.starts,
        )
        self.causes[rule.code] = cause
        if rule.code == "gpu.lost" and (xid := re.search(r"\bXid\b.{0,40}?: (\d+)", line.text)):
            self.causes.setdefault(
                "gpu.xid", Cause("gpu.xid", raw.line, cause.message, 0.95, soft, f"Xid {xid[1]}.", [raw])
            )
        if line.text.startswith("  Input should"):
            # pydantic names the field on the line before.
            cause.evidence[:0] = before(1)
            cause.message = " ".join(clean_text(evidence.text) for evidence in before(1)) + ": " + cause.message
        return _Wanting(cause.evidence, 2) if line.text.rstrip().endswith((":", "Reasons")) else None

    def _record_unknown(
        self, text: str, level: Level, raw: Evidence, before: Callable[[int], list[Evidence]]
    ) -> "_Wanting | None":
        is_exception = bool(EXCEPTION.match(text))
        if self.exception is not None or not (is_exception or level is Level.ERROR):
            return None
        if not is_exception and (self.complaint is not None or text.startswith("Traceback")):
            return None
        around = [earlier for earlier in before(8) if clean_text(earlier.text)][-5:]
        cause = Cause("unknown", raw.line, message_of(text, keep_class=True), 0.3, evidence=[*around, raw])
        if is_exception:
            self.exception = cause
        else:
            self.complaint = cause
        return _Wanting(cause.evidence, 3)


def _hint(rule: Rule, text: str) -> str:
    if not rule.hint:
        return ""
    match = rule.pattern.search(text)
    return rule.hint.format(**match.groupdict()) if match else ""


_CLASS = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Failure)(?:\(\w+\))?:\s*")
_WARNED_IN = re.compile(r"/\S+\.py:\d+: \w*Warning: ")
_PYDANTIC_TAIL = re.compile(r"\s*\[type=\w+, input_value=.*\Z")


def message_of(text: str, *, keep_class: bool = False) -> str:
    """The sentence in a line: without pydantic's additions and, unless asked for, without the exception's class."""
    text = _PYDANTIC_TAIL.sub("", _WARNED_IN.sub("", text.strip().removeprefix("Value error, "), count=1))
    stripped = text if keep_class else _CLASS.sub("", text, count=1)
    return (stripped or text)[:600]


def clean_text(raw: str) -> str:
    """The text of a shown line, without prefix and surrounding space."""
    return next(clean(raw.encode(errors="replace"))).text.strip()


_COLOUR = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


def _shown(raw: bytes) -> str:
    return _COLOUR.sub("", raw[:LONGEST_LINE].replace(b"\0", b"").decode(errors="replace")).rstrip()


def _may_complain(line: bytes) -> bool:
    """False for an empty line, one that calls itself INFO, and a traceback's source line, which repeats others' words."""
    return (
        bool(line)
        and not line.startswith((b"INFO:", b"    "))
        and line.find(b" INFO ", 0, 96) < 0
        and line.find(b"]     ", 0, 120) < 0
    )


def _is_settled(cause: Cause) -> bool:
    """Whether further lines of the same cause would change nothing of what is said of it."""
    return (
        len(cause.evidence) >= _EVIDENCE_PER_CAUSE
        and not cause.soft
        and cause.confidence >= _SUREST.get(cause.code, 1)
        and bool(cause.hint or cause.code not in _HINTED)
        and cause.code != "gpu.lost"  # a later line may name the Xid
    )


def _matching_rules(rules: Sequence[Rule], text: str, *, informative: bool) -> list[Rule]:
    """The rules whose pattern is in `text`, in order, up to the first that needs no context."""
    found = []
    for rule in rules:
        if informative and not rule.any_level:
            continue
        for word in rule.words:
            if word in text:
                break
        else:
            continue
        if rule.pattern.search(text):
            found.append(rule)
            if rule.context is None:
                break
    return found
