"""Judging whether a chat answer is sane: the text checks of the validate step.

A server that answers `/health` with 200 can still talk nonsense: a weight tensor that was never loaded, a wrong chat
template, a foreign tokenizer, scales of a quantisation read the wrong way. Each of these leaves its own trace in the
text. `judge_answer` looks for the traces, says what each points at, and which check to do next. It is pure: text in,
judgement out; it never decides what happens to the instance.

The thresholds are chosen so that ordinary answers pass (counting, poems with a refrain, code full of zeros, tables,
mixed Chinese and English). A short answer of random but ordinary words can't be told from a bad answer by its
text alone: give `expected` for that.
"""

import re
import unicodedata
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from workers.vllm.languages import is_in_language, scripts_of


class Suspect(StrEnum):
    """The part of a deployment that a failed check points at."""

    WEIGHTS = "weights"
    TEMPLATE = "template"
    TOKENIZER = "tokenizer"
    QUANTISATION = "quantisation"
    ENGINE = "engine"


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with an answer.

    `code` is stable (for rules and pages), `message` says what was seen, `points_at` lists the suspects, the likeliest
    first, and `next_check` is the one check that separates them best.
    """

    code: str
    message: str
    points_at: tuple[Suspect, ...]
    next_check: str


@dataclass(frozen=True)
class Judgement:
    """All findings about one answer, in the order in which they were looked for; none means that it is sane."""

    findings: tuple[Finding, ...] = ()

    @property
    def ok(self) -> bool:
        """True if nothing is wrong."""
        return not self.findings

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of the findings, in order."""
        return tuple(finding.code for finding in self.findings)


@dataclass(frozen=True)
class Answer:
    """What the checks look at: the visible text and what the engine said about it."""

    text: str
    finish_reason: str | None = None
    expected: str | None = None
    language: str | None = None
    tokens: tuple[str, ...] = ()


_CONTROL_RUN = (
    "Ask the same question of the same files with transformers in the engine's own venv: if that answer is fine, the "
    "engine or its quantisation kernel is at fault; if not, the files are."
)
_VERIFY_FILES = (
    "Verify the files: every tensor of the architecture present, sizes and sha256 as published. A tensor that is "
    "missing loads without an error and leaves a layer uninitialised."
)

# code -> (suspects, likeliest first; the next check)
ADVICE: dict[str, tuple[tuple[Suspect, ...], str]] = {
    "empty": (
        (Suspect.TEMPLATE, Suspect.TOKENIZER, Suspect.WEIGHTS),
        "Call /tokenize with the same messages and read the prompt it renders: it must end where the assistant "
        "speaks. Then ask again through /v1/completions with a plain sentence.",
    ),
    "repeated_token": ((Suspect.WEIGHTS, Suspect.QUANTISATION, Suspect.ENGINE), _VERIFY_FILES + " " + _CONTROL_RUN),
    "repeated_phrase": (
        (Suspect.TEMPLATE, Suspect.QUANTISATION, Suspect.WEIGHTS),
        "Read the rendered prompt with /tokenize and compare it with the model card's example. " + _CONTROL_RUN,
    ),
    "replacement_characters": (
        (Suspect.TOKENIZER, Suspect.WEIGHTS),
        "Send the text through /tokenize and /detokenize: it must come back unchanged. If it does, go on with the "
        "weights.",
    ),
    "mojibake": (
        (Suspect.TOKENIZER,),
        "Send 'é 你好' through /tokenize and /detokenize: it must come back unchanged. If not, the tokenizer files are "
        "not the model's own, or were converted with the wrong encoding.",
    ),
    "undecoded_tokens": (
        (Suspect.TOKENIZER,),
        "The tokenizer's decoder is missing or of another kind: compare tokenizer.json and tokenizer_config.json with "
        "the published ones.",
    ),
    "unprintable": (
        (Suspect.TOKENIZER, Suspect.WEIGHTS, Suspect.QUANTISATION),
        "Compare the tokenizer's vocabulary size with vocab_size in config.json, then verify the files.",
    ),
    "garbled": ((Suspect.WEIGHTS, Suspect.QUANTISATION, Suspect.TOKENIZER), _VERIFY_FILES + " " + _CONTROL_RUN),
    "special_tokens": (
        (Suspect.TEMPLATE, Suspect.TOKENIZER),
        "Compare eos_token_id in generation_config.json, and the special tokens of the tokenizer, with those that the "
        "chat template writes.",
    ),
    "wrong_language": (
        (Suspect.TEMPLATE, Suspect.WEIGHTS),
        "Read the rendered prompt with /tokenize: a lost system or user message often shows as the wrong language. "
        "Small models may simply not know it: compare with the model card.",
    ),
    "not_stopped": (
        (Suspect.TEMPLATE, Suspect.TOKENIZER),
        "Ask again with more max_tokens. If it still runs on, the end-of-turn token is not known as a stop: compare "
        "eos_token_id in generation_config.json with the chat template.",
    ),
    "engine_error": ((Suspect.ENGINE,), "Read the engine's log at this request: diagnose it before anything else."),
    "unexpected_answer": (
        (Suspect.WEIGHTS, Suspect.QUANTISATION, Suspect.TEMPLATE),
        _CONTROL_RUN + " For a quantised model, ask the unquantised one too.",
    ),
}


def judge_answer(
    text: str,
    *,
    finish_reason: str | None = None,
    expected: str | None = None,
    language: str | None = None,
    tokens: Sequence[str] = (),
) -> Judgement:
    """Judge one answer of a chat or completion request.

    `text` is the assistant's text as the API returned it; `finish_reason` is the API's (`stop`, `length`, …);
    `expected` is a word or phrase that a right answer contains (compared without case and width); `language` is a
    BCP 47 tag such as `en` or `zh-Hans`; `tokens` are the texts of the single tokens where log probabilities were
    asked for. What is not given is not judged. Never raises for any text.
    """
    answer = Answer(_without_thinking(text), finish_reason, expected, language, tuple(tokens))
    found: list[Finding] = []
    for code, check in _CHECKS:
        message = check(answer)
        if message is not None:
            points_at, next_check = ADVICE[code]
            found.append(Finding(code, message, points_at, next_check))
            if code == "empty":
                break
    return Judgement(tuple(found))


_THINKING = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)


def _without_thinking(text: str) -> str:
    """Drop a reasoning block: it may be long, loop a little and use another language; the answer may not."""
    if "</think>" in text and "<think>" not in text:
        return text.partition("</think>")[2]  # templates of reasoning models often open the block themselves
    return _THINKING.sub("", text)


def _empty(answer: Answer) -> str | None:
    return None if answer.text.strip() else "the answer has no text"


# Rules, boxes and leaders of ordinary Markdown: long runs of these are layout, not a stuck token.
_LAYOUT = set("-=_*~#.─━═│|+ ·…")
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]|\w+|[^\w\s]")


@dataclass(frozen=True)
class _Loop:
    """Words `period` long that follow each other `repeats` times; `share` is their part of all words."""

    phrase: str
    period: int
    repeats: int
    share: float
    at_end: bool


def _repeated_token(answer: Answer) -> str | None:
    if len(answer.tokens) >= 4 and len({token.strip() for token in answer.tokens}) == 1:
        return f"all {len(answer.tokens)} tokens are {answer.tokens[0]!r}"
    solid = "".join(answer.text.split())
    for character in set(solid) if len(set(solid)) <= 3 else set():
        count = solid.count(character)
        # "111111" can be an answer; "!!!!!!" can't.
        least = 12 if character.isdigit() else 5
        if count >= least and count >= 0.9 * len(solid):
            return f"{character!r} is repeated {count} times and is nearly the whole answer"
    run = re.search(r"(\S)\1{24,}\s*\Z", answer.text)
    if run and (run[1] not in _LAYOUT or len(run[0]) > 200):
        return f"the answer ends with {run[1]!r} repeated {len(run[0].rstrip())} times"
    loop = _worst_loop(answer.text, longest_period=1)
    if loop and _is_stuck(loop):
        return f"the word {loop.phrase!r} is repeated {loop.repeats} times in a row"
    return None


def _repeated_phrase(answer: Answer) -> str | None:
    if answer.finish_reason == "repetition":
        return "the engine stopped the answer because it repeated itself"
    loop = _worst_loop(answer.text, longest_period=80)
    if loop and loop.period > 1 and _is_stuck(loop):
        return f"{loop.phrase[:80]!r} is repeated {loop.repeats} times in a row"
    tail = answer.text[-2000:].encode(errors="replace")
    # Counting, tables and code stay above 0.15; a loop with small variations falls far below.
    if len(tail) >= 600 and len(zlib.compress(tail, 9)) < 0.07 * len(tail):
        return "the last part of the answer says the same thing over and over"
    return None


def _is_stuck(loop: _Loop) -> bool:
    words = loop.period * loop.repeats
    if loop.share >= 0.9:
        return loop.repeats >= 3
    if loop.at_end and loop.repeats >= 4:
        return words >= 24 or (loop.share >= 0.5 and loop.repeats >= 6)
    # In the middle (then the model got out of it) only when most of the answer is the loop: `[0, 0, 0, …]` is code.
    return loop.share >= 0.7 and loop.repeats >= 8


def _worst_loop(text: str, *, longest_period: int) -> _Loop | None:
    """The loop that covers most words, if there is one."""
    words = [word.casefold() for word in _WORD.findall(text[-8000:])]
    worst: _Loop | None = None
    for period in range(1, min(longest_period, len(words) // 3) + 1):
        start, end = _longest_repetition(words, period)
        repeats = (end - start) // period
        phrase = words[start : start + period]
        has_letters = any(any(map(str.isalpha, word)) for word in phrase)
        # A grid of zeros and the dots of a table of contents are no sign of anything until they go on and on.
        least = 3 if has_letters else 200 if set(phrase) <= _LAYOUT else 30
        if repeats < least or (not has_letters and period > 2):
            continue
        share = (end - start) / len(words)
        if worst is None or share > worst.share + 0.01:
            # The last word may be cut off by the token limit.
            worst = _Loop(" ".join(phrase), period, repeats, share, at_end=end >= len(words) - 1)
    return worst


def _longest_repetition(words: list[str], period: int) -> tuple[int, int]:
    """Start and end of the longest stretch in which every word equals the one `period` words before."""
    best = (0, 0)
    start = 0
    for index in range(period, len(words) + 1):
        if index == len(words) or words[index] != words[index - period]:
            if index - start > best[1] - best[0]:
                best = (start, index)
            start = index - period + 1
    return best


def _replacement_characters(answer: Answer) -> str | None:
    text = answer.text
    if answer.finish_reason == "length":
        text = text.rstrip("\ufffd")  # a character whose bytes the token limit cut in two
    count = text.count("\ufffd")
    return f"{count} replacement characters (U+FFFD)" if count else None


# The bytes 0x80 to 0xFF as Latin-1 shows them, and the characters that Windows-1252 puts in place of 0x80 to 0x9F:
# UTF-8 that was decoded by either is made of these.
_WINDOWS_1252 = "".join(bytes([byte]).decode("cp1252", errors="ignore") for byte in range(0x80, 0xA0))
_BYTES_AS_TEXT = re.compile(f"[\u0080-\u00ff{_WINDOWS_1252}]{{2,}}")
# Latin, Greek, Cyrillic letters, general punctuation, Chinese, Japanese, Korean, full-width forms, emoji. Not in it:
# the rare letters that quotation marks beside an accented capital happen to spell.
_PLAUSIBLE = re.compile(
    "[\u00a1-\u017f\u0391-\u03c9\u0410-\u044f\u0451\u2010-\u203a\u20ac\u2122\u3000-\u30ff\u4e00-\u9fff\uac00-\ud7a3"
    "\uff01-\uffee\U0001f300-\U0001faff]"
)


def _mojibake(answer: Answer) -> str | None:
    for run in _BYTES_AS_TEXT.finditer(answer.text):
        meant = _as_utf8(run[0])
        if _PLAUSIBLE.search(meant):
            return f"{run[0][:20]!r} is {meant[:20]!r} decoded with the wrong encoding"
    return None


def _as_utf8(run: str) -> str:
    """What `run` reads as when its characters are taken for the bytes of UTF-8; what is no UTF-8 in it is left out."""
    return b"".join(map(_byte_of, run)).decode(errors="ignore")


def _byte_of(character: str) -> bytes:
    return character.encode("cp1252" if ord(character) > 0xFF else "latin-1", errors="replace")


_UNDECODED = re.compile(r"<0x[0-9A-F]{2}>|[\w.,!?][ĠĊ](?=\w|[ĠĊ])|\u2581\w+\u2581")


def _undecoded_tokens(answer: Answer) -> str | None:
    found = _UNDECODED.findall(answer.text)
    return f"raw vocabulary pieces such as {found[0]!r} in the text" if found else None


def _unprintable(answer: Answer) -> str | None:
    bad = [c for c in answer.text if c not in "\n\r\t" and unicodedata.category(c) in ("Cc", "Co", "Cn", "Cs")]
    if not bad or (len(bad) < 3 and len(bad) < 0.02 * len(answer.text)):
        return None
    return f"{len(bad)} of {len(answer.text)} characters are not printable (first: U+{ord(bad[0]):04X})"


_SEPARATE_SCRIPTS = {"LATIN", "CYRILLIC", "GREEK", "ARABIC", "HEBREW", "THAI", "DEVANAGARI", "HANGUL", "ARMENIAN"}


def _garbled(answer: Answer) -> str | None:
    """Word salad from many scripts: what an uninitialised or wrongly scaled layer makes of a multilingual vocabulary.

    A list of words in many languages is fine; scripts that change inside words are not.
    """
    switches = 0
    for word in re.findall(r"[^\W\d_]+", answer.text):
        scripts = [script for script in scripts_of(word) if script in _SEPARATE_SCRIPTS]
        switches += sum(1 for before, after in pairwise(scripts) if before != after)
    if switches >= 3:
        return f"the script changes {switches} times inside words"
    soup = re.search(r"(?<![\w/+=.-])[A-Za-z]{90,}(?![\w/+=.-])", answer.text)
    return f"{len(soup[0])} letters without a space: {soup[0][:40]!r}…" if soup else None


_SPECIAL_TOKENS = re.compile(
    r"<\|(?:im_(?:start|end)|end(?:oftext|_of_text)?|eot_id|(?:start|end)_header_id|assistant|user|system|eom_id)\|>"
    r"|\[/?INST\]|</?(?:start|end)_of_turn>|<\uff5c[^\uff5c>]{1,40}\uff5c>|</s>\s*\Z|<(?:pad|unk)>"
)
_NEXT_TURN = re.compile(r"(?m)(?:^|[.!?\u3002\uff01\uff1f])(?:assistant|user)\n")


def _special_tokens(answer: Answer) -> str | None:
    special = _SPECIAL_TOKENS.search(answer.text)
    if special:
        return f"the special token {special[0].strip()!r} is in the text"
    turn = _NEXT_TURN.search(answer.text.lstrip())
    if turn and turn.start() > 0:
        return "the answer goes on with another turn of the conversation"
    return None


def _wrong_language(answer: Answer) -> str | None:
    if answer.language is None or is_in_language(answer.text, answer.language) is not False:
        return None
    return f"the answer is not in the language that was asked for ({answer.language})"


def _not_stopped(answer: Answer) -> str | None:
    return "the answer ran into the token limit" if answer.finish_reason == "length" else None


def _engine_error(answer: Answer) -> str | None:
    if answer.finish_reason in ("abort", "error"):
        return f"the engine ended the answer with {answer.finish_reason!r}"
    return None


def _unexpected_answer(answer: Answer) -> str | None:
    if answer.expected is None or not answer.expected.strip():
        return None
    wanted, text = _comparable(answer.expected), _comparable(answer.text)
    # "4" must not be found in "42", but 巴黎 has no spaces around it.
    left, right = (r"(?<![^\W_])" if end.isascii() and end.isalnum() else "" for end in (wanted[0], wanted[-1]))
    right = right.replace("?<!", "?!")
    if re.search(left + re.escape(wanted) + right, text):
        return None
    return f"{answer.expected!r} is not in the answer"


def _comparable(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


_CHECKS: tuple[tuple[str, Callable[[Answer], str | None]], ...] = (
    ("engine_error", _engine_error),
    ("empty", _empty),
    ("repeated_token", _repeated_token),
    ("repeated_phrase", _repeated_phrase),
    ("replacement_characters", _replacement_characters),
    ("mojibake", _mojibake),
    ("undecoded_tokens", _undecoded_tokens),
    ("unprintable", _unprintable),
    ("garbled", _garbled),
    ("special_tokens", _special_tokens),
    ("wrong_language", _wrong_language),
    ("not_stopped", _not_stopped),
    ("unexpected_answer", _unexpected_answer),
)
