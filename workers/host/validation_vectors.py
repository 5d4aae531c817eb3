"""The check of a model that pools: what it makes of texts are vectors, and they tell texts apart."""

from workers.host.engine_client import EngineError, VectorAnswer
from workers.host.validation import ENGINE_LOG, CheckFailedError, Found, Subject
from workers.vllm.vectors import EMBEDDINGS_PATH, POOLING_PATH, distance, fault_of, is_other, is_same

_OTHER_TEXT = "Seven grey whales swam north along the coast before the first snow fell."
_FAULTS = {
    "empty": ("an answer without a vector", ("engine",)),
    "not_finite": ("numbers that are not finite", ("weights", "quantisation", "engine")),
    "zeros": ("zeros only", ("weights", "quantisation")),
}
_COMPARE = (
    "Verify the model's files, then compare a vector with the one that sentence-transformers makes of the same text."
)


def vectors(subject: Subject) -> Found:
    """Finite numbers, of one length, not all zeros; the same for the same text, and others for another text."""
    first = _vector(subject, subject.question)
    for number in range(2, subject.order.probe.repeats + 1):
        again = _vector(subject, subject.question, f"the same vector once more ({number})")
        if not is_same(first.values, again.values):
            raise CheckFailedError(
                "vector.unsteady",
                f"the same text became another vector: {_apart(first, again)}",
                points_at=("engine", "weights"),
                next_step=_COMPARE,
            )
    other = _vector(subject, _OTHER_TEXT, "the vector of another text")
    if len(other.values) != len(first.values):
        raise CheckFailedError(
            "vector.length",
            f"two texts became vectors of two lengths: {len(first.values)} and {len(other.values)} numbers",
            points_at=("engine",),
            next_step=ENGINE_LOG,
        )
    fact = f"{first.path} gives {len(first.values):,} numbers; another text is {distance(first.values, other.values):.2g} away"
    if is_other(first.values, other.values):
        return Found(fact)
    if (
        first.path != EMBEDDINGS_PATH
    ):  # two texts may well be of one class, with all the certainty that a number can say
        return Found(
            f"{first.path} gives the same for two texts", warning=True, next_step="Ask it for texts of two classes."
        )
    raise CheckFailedError(
        "vector.same_for_all",
        f"two different texts became the same vector of {len(first.values):,} numbers",
        points_at=("weights", "tokenizer"),
        next_step=_COMPARE,
    )


def _vector(subject: Subject, text: str, waiting_for: str = "the vector of a test text") -> VectorAnswer:
    client, model = subject.client, subject.model
    try:
        answer = subject.call(lambda: client.embed(model, text), waiting_for)
    except EngineError as error:
        if error.status != 404:
            raise
        raise CheckFailedError(
            "validate.no_vectors",
            f"the engine gives no vectors: it has neither {EMBEDDINGS_PATH} nor {POOLING_PATH}",
            points_at=("engine",),
            next_step="Read in the engine's log which tasks it supports. A model for text gives vectors only with --runner "
            "pooling.",
        ) from error
    refuse_faulty(answer)
    return answer


def refuse_faulty(answer: VectorAnswer) -> None:
    """Raise `CheckFailedError` if the vector can't be the work of sound weights."""
    if not (fault := fault_of(answer.values)):
        return
    what, suspects = _FAULTS[fault]
    raise CheckFailedError(
        f"vector.{fault}",
        f"{answer.path} gives {what}",
        points_at=suspects,
        next_step=ENGINE_LOG if fault == "empty" else _COMPARE,
        evidence=(f"the first numbers: {', '.join(f'{one:g}' for one in answer.values[:8])}",),
    )


def _apart(one: VectorAnswer, other: VectorAnswer) -> str:
    if len(one.values) != len(other.values):
        return f"{len(one.values)} and {len(other.values)} numbers"
    return f"{distance(one.values, other.values):.2g} of its length away"
