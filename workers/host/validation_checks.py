"""The checks of a validation, in their fixed order. Each asks the engine something and judges what comes back."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from workers.contracts import GoldenAnswer
from workers.host.engine_client import ChatAnswer, EngineError
from workers.host.validation import ENGINE_LOG, EVERY, CheckFailedError, CheckOfEngine, Depth, Found, Subject
from workers.host.validation_interfaces import PLAIN_PROMPT, completions, declared_json, declared_tools, streaming
from workers.host.validation_lengths import lengths
from workers.host.validation_vectors import vectors
from workers.vllm.answer_comparison import compare_answers, explain_difference
from workers.vllm.sanity import ADVICE, Judgement, judge_answer

__all__ = ["CHECKS", "depth_of"]

_ANSWER_TOKENS = 64
_LONG_ANSWER_TOKENS = 2048
_BASE_ANSWER_TOKENS = 24
_ENOUGH_TO_STOP = 512
"""A chat answer that still runs on after so many tokens has lost its end-of-turn token."""

_SHORT_TOKENS = 5
"""Enough for answers to part: at temperature 0 the first tokens are the surest ones, so this shows gross faults only."""

_LOST_WEIGHTS = ("weights.tensor_missing", "weights.shard_missing")

_ROUND_TRIP = "Résumé: 你好, 3 × 4 = 12."
_ENCODING_FAULTS = ("replacement_characters", "mojibake", "undecoded_tokens")
_TOLERATED_OF_BASE = ("not_stopped", "repeated_phrase", "special_tokens", "wrong_language")
"""A base model goes on with a text: it never stops by itself, and at temperature 0 it may well repeat a sentence."""


def tokenizer(subject: Subject) -> Found:
    """Text, tokens, text: what comes back must be what was sent."""
    client, model = subject.client, subject.model
    try:
        tokens = subject.call(lambda: client.tokenize(model, _ROUND_TRIP, as_chat=False), "the tokenizer")
        back = subject.call(lambda: client.detokenize(model, tokens), "the tokenizer") if tokens else ""
    except EngineError as error:
        raise CheckFailedError(
            "tokenizer.missing",
            f"the engine listens, but its tokenizer doesn't work: {error}",
            points_at=("tokenizer",),
            next_step="Verify the model: tokenizer.json or tokenizer.model must be there, as published.",
        ) from error
    faults = [code for code in judge_answer(back).codes if code in _ENCODING_FAULTS]
    if not back.strip() or faults:
        raise CheckFailedError(
            f"tokenizer.{faults[0]}" if faults else "tokenizer.lossy",
            f"{_ROUND_TRIP!r} came back from /tokenize and /detokenize as {back[:80]!r}",
            points_at=("tokenizer",),
            next_step=ADVICE[faults[0] if faults else "mojibake"][1],
        )
    subject.tokens_come_back = _plain(back) == _plain(_ROUND_TRIP)
    if subject.tokens_come_back:
        return Found(f"{len(tokens)} tokens for {len(_ROUND_TRIP)} characters, and the same text back")
    return Found(
        f"{_ROUND_TRIP!r} came back as {back[:80]!r}",
        warning=True,
        next_step="Fine for a tokenizer that knows one language only; otherwise compare its files with the published.",
    )


def template(subject: Subject) -> Found:
    """The chat template makes a prompt, and the question is in it."""
    if subject.mode == "completions":
        return Found("not looked at: this is declared as a base model without a chat template", skipped=True)
    client, model, question = subject.client, subject.model, subject.question
    try:
        tokens = subject.call(lambda: client.tokenize(model, question, as_chat=True), "the chat template")
        prompt = subject.call(lambda: client.detokenize(model, tokens), "the chat template")
    except EngineError as error:
        missing = "chat template" in str(error).lower()
        raise CheckFailedError(
            "chat_template.missing" if missing else "validate.request_failed",
            f"the engine listens, but can't make a prompt of a chat message: {error}",
            points_at=("template", "tokenizer"),
            next_step="Add the model's chat_template.jinja, give --chat-template, or declare it as a base model."
            if missing
            else ENGINE_LOG,
        ) from error
    if subject.tokens_come_back and _plain(question) not in _plain(prompt):
        raise CheckFailedError(
            "chat_template.loses_message",
            f"the rendered prompt doesn't hold the question: {prompt[:200]!r}",
            points_at=("template",),
            next_step="Compare the chat template with the one on the model's card: it drops the user's message.",
        )
    return Found(f"the question becomes {len(tokens)} tokens, and stands in the prompt")


def question(subject: Subject) -> Found:
    """The answer has text, makes sense, is in the language asked for, holds what is expected, and stops by itself."""
    base = subject.mode == "completions"
    limit = _BASE_ANSWER_TOKENS if base else _ANSWER_TOKENS
    answer = subject.ask(limit, "the answer to a test question", in_pieces=True)
    if not answer.text.strip():
        # Is it the model that is silent, or only the pieces that are lost? The latter is for the check of streaming to say.
        subject.whole = subject.ask(limit, "the answer as a whole")
        answer = replace(subject.whole, ttft_seconds=None)
    judgement = _judge(answer, subject)
    if not base and answer.finish_reason == "length" and (not _sound(judgement) or not judgement.ok):
        # A model that thinks first needs more room before it comes to the point.
        answer = subject.ask(_LONG_ANSWER_TOKENS, "a longer answer to the test question")
        judgement = _judge(answer, subject)
    subject.answer = answer
    said = f"{answer.text.strip()[:120]!r}, {answer.completion_tokens} tokens, ended by {answer.finish_reason}"
    if base or judgement.ok:
        _refuse(judgement, answer, subject, tolerated=_TOLERATED_OF_BASE if base else ())
    elif answer.thinking or (answer.completion_tokens or 0) < _ENOUGH_TO_STOP:
        _refuse(judgement, answer, subject, tolerated=("not_stopped", "unexpected_answer") if answer.thinking else
                ("not_stopped",))  # fmt: skip
        still = "it was still thinking" if answer.thinking else "it ran into the limit"
        return Found(f"{said}; {still} after {answer.completion_tokens} tokens", warning=True)
    else:
        _refuse(judgement, answer, subject, tolerated=())
    if answer.finish_reason != "length":
        engine = subject.order.engine
        subject.golden = [GoldenAnswer(question=subject.question, answer=answer.text, engine=engine)]
    return Found(said)


def weights(subject: Subject) -> Found:
    """No tensor of the architecture is missing. A sane answer doesn't prove that: a lost layer may go unnoticed for long."""
    report = subject.call(subject.files.result, "the headers of the model's files")
    lost = next((found for found in report.findings if found.code in _LOST_WEIGHTS), None)
    if lost is not None:
        raise CheckFailedError(
            lost.code,
            f"the engine answers, but a part of its weights is whatever lay in its memory: {lost.message}",
            points_at=("weights",),
            next_step=lost.fix,
        )
    return Found("every tensor that the architecture needs is in the files, by their headers")


def golden(subject: Subject) -> Found:
    """The answer is compared with the one that was kept for this revision."""
    kept = next((one for one in subject.order.probe.golden if one.question == subject.question), None)
    answer = subject.answer
    if kept is None or answer is None:
        return Found("none is kept for this revision and question yet", skipped=True)
    likeness = compare_answers(kept.answer, answer.text)
    where = "this engine" if kept.engine == subject.order.engine else kept.engine
    if likeness.same:
        return Found(f"the same as that of {where}")
    return Found(
        f"{where} answered {kept.answer.strip()[:120]!r}; alike to {likeness.share:.0%}, {likeness.where}",
        warning=True,
        next_step="Kernels differ in rounding between versions, so a late difference is usual. If the answers differ "
        "from their first words on, ask both engines a few questions of your own before you switch.",
    )


def repeats(subject: Subject) -> Found:
    """Temperature 0 gives the same answer each time, or the difference has a reason. The question's answer is the first."""
    count, first = subject.order.probe.repeats, subject.answer
    if count < 2 or first is None:
        return Found("asked once only, as configured", skipped=True)
    if subject.is_slow:
        return _short_repeats(subject, count)
    limit = _BASE_ANSWER_TOKENS if subject.mode == "completions" else _ANSWER_TOKENS
    answers = [subject.ask(limit, f"the same answer once more ({number} of {count})") for number in range(2, count + 1)]
    subject.whole = answers[0]
    for answer in answers:
        tolerated = {"not_stopped", "unexpected_answer", *_TOLERATED_OF_BASE}
        _refuse(_judge(answer, subject), answer, subject, tolerated=tuple(tolerated), repeated=True)
    if first.finish_reason == "length" or (first.completion_tokens or 0) > limit:
        return _alike([answer.text for answer in answers], subject, f"{len(answers)} times the same at temperature 0")
    return _alike(
        [first.text, *(answer.text for answer in answers)], subject, f"{count} times the same at temperature 0"
    )


def _short_repeats(subject: Subject, count: int) -> Found:
    """The same in little: a few words are gone on with, as often, all at once."""
    client, model, seconds = subject.client, subject.model, subject.answer.seconds if subject.answer else 0.0

    def ask_at_once() -> list[ChatAnswer]:
        with ThreadPoolExecutor(count) as pool:
            asked = [pool.submit(client.complete, model, PLAIN_PROMPT, max_tokens=_SHORT_TOKENS) for _ in range(count)]
            return [one.result() for one in asked]

    answers = subject.call(ask_at_once, f"{count} short answers at once")
    subject.completion = answers[0]
    for answer in answers:
        tolerated = ("unexpected_answer", "empty", *_TOLERATED_OF_BASE)
        _refuse(judge_answer(answer.text), answer, subject, tolerated=tolerated, repeated=True)
    told = f"“{PLAIN_PROMPT}”, {_SHORT_TOKENS} tokens, {count} at once, as one answer to the question takes {seconds:.1f} s"
    return _alike([answer.text for answer in answers], subject, f"{count} times the same at temperature 0 ({told})")


def _alike(texts: list[str], subject: Subject, fact: str) -> Found:
    if len(set(texts)) <= 1:
        return Found(fact)
    return Found(
        f"{len(set(texts))} different answers to one question at temperature 0: "
        f"{explain_difference(texts, subject.order.arguments)}",
        warning=True,
        next_step="If answers must be repeatable, set VLLM_BATCH_INVARIANT=1 (GPUs of capability 8.0 and later).",
    )


def _judge(answer: ChatAnswer, subject: Subject) -> Judgement:
    probe = subject.order.probe
    return judge_answer(
        answer.text,
        finish_reason=answer.finish_reason,
        expected=probe.expected or None,
        language=probe.language or None,
    )


def _sound(judgement: Judgement) -> bool:
    return all(code == "not_stopped" for code in judgement.codes)


def _refuse(
    judgement: Judgement, answer: ChatAnswer, subject: Subject, *, tolerated: tuple[str, ...], repeated: bool = False
) -> None:
    finding = next((found for found in judgement.findings if found.code not in tolerated), None)
    if finding is None:
        return
    suspects = [str(suspect) for suspect in finding.points_at]
    if repeated:  # the same question was answered well a moment ago: files don't change, engines do
        suspects = ["engine", *(suspect for suspect in suspects if suspect != "engine")]
    raise CheckFailedError(
        f"answer.{finding.code}",
        f"the model answers, but not sanely: {finding.message}",
        points_at=tuple(suspects),
        next_step=finding.next_check,
        evidence=(f"question: {subject.question}", f"answer: {answer.text[:1000]}"),
    )


def _plain(text: str) -> str:
    return "".join(text.split()).casefold()


CHECKS: tuple[CheckOfEngine, ...] = (
    CheckOfEngine("tokenizer", "A text comes back unchanged from /tokenize and /detokenize.", tokenizer, brief=True,
                  modes=EVERY),
    CheckOfEngine("template", "The chat template makes a prompt that holds the question.", template, brief=True),
    CheckOfEngine(
        "question", "A sane answer: text, no loop, no broken characters, the right language, its own end.", question,
        brief=True,
    ),
    CheckOfEngine(
        "vectors", "Finite numbers, not all zeros: the same for the same text, others for another one.", vectors,
        brief=True, modes=("embeddings",),
    ),
    CheckOfEngine("weights", "No tensor of the architecture is missing in the files.", weights, brief=True, modes=EVERY),
    CheckOfEngine("golden", "The answer that was kept for this revision, after each change of engine.", golden,
                  brief=True),
    CheckOfEngine("lengths", "Prompts up to the context are answered, and time grows with length.", lengths, modes=EVERY),
    CheckOfEngine("repeats", "The same answer each time at temperature 0, or a reason for the difference.", repeats),
    CheckOfEngine("completions", "/v1/completions answers.", completions),
    CheckOfEngine("streaming", "A streamed answer has the same text as a whole one.", streaming),
    CheckOfEngine("tools", "A forced tool call comes as a call with JSON arguments, if tools are declared.",
                  declared_tools),
    CheckOfEngine("json", "An answer by a JSON schema is JSON of that schema, if declared.", declared_json),
)  # fmt: skip


def depth_of(*, start: int, ready_start: int | None) -> Depth:
    """`brief` for a process that replaces one of the same start, which was ready; `full` for everything new."""
    return "brief" if ready_start == start else "full"
