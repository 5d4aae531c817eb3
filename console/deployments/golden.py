"""Golden answers: what sound engines answered, kept for each revision, sent with orders to be compared with."""

import hashlib

from console.deployments.models import GoldenAnswer, Instance, Spec
from workers import contracts


def keep(instance: Instance, answers: list[contracts.GoldenAnswer]) -> None:
    """Keep the answers of a validation that found the engine sound; an engine's first answer stays its golden one."""
    for given in answers:
        GoldenAnswer.objects.get_or_create(
            revision_id=instance.spec.copy.revision_id,
            engine=given.engine,
            question_sha256=_sha256(given.question),
            defaults={"question": given.question, "answer": given.answer},
        )


def of_spec(spec: Spec, *, most: int = 8) -> list[contracts.GoldenAnswer]:
    """What is known of this revision: answers of the spec's own engine first, then the newest of others."""
    rows = GoldenAnswer.objects.filter(revision_id=spec.copy.revision_id)[: 4 * most]
    ordered = sorted(rows, key=lambda row: row.engine != spec.engine.key)
    return [
        contracts.GoldenAnswer(question=row.question, answer=row.answer, engine=row.engine) for row in ordered[:most]
    ]


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
