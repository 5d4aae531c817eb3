"""Golden answers: what sound engines answered, kept for each revision, sent with orders to be compared with."""

import hashlib
from typing import Any

from django.db import transaction
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext as _

from console.access import services as access
from console.access.models import User
from console.common import live
from console.common.errors import Refused
from console.deployments.models import Attempt, GoldenAnswer, Instance, Spec
from workers import contracts


def keep(instance: Instance, answers: list[contracts.GoldenAnswer]) -> None:
    """Keep the answers of a validation that found the engine sound; an engine's first answer stays its golden one.

    One that differs from what another engine answered isn't kept: a person has to accept it.
    """
    for given in answers:
        kept = GoldenAnswer.objects.filter(
            revision_id=instance.spec.copy.revision_id, question_sha256=_sha256(given.question)
        )
        if kept.exists() and not kept.filter(Q(answer=given.answer) | Q(engine=given.engine)).exists():
            continue
        kept.get_or_create(
            revision_id=instance.spec.copy.revision_id,
            engine=given.engine,
            question_sha256=_sha256(given.question),
            defaults={"question": given.question, "answer": given.answer},
        )


def differing(attempt: Attempt) -> list[tuple[str, str, str]]:
    """Question, golden answer and new answer, where the last validation of a process found them to differ."""
    return [
        (row["question"], row["before"], row["answer"])
        for row in _rows(attempt)
        if row["before"] and row["before"] != row["answer"]
    ]


def _rows(attempt: Attempt) -> list[dict[str, Any]]:
    revision = attempt.instance.spec.copy.revision_id
    rows = []
    for given in attempt.validation.get("golden") or []:
        kept = GoldenAnswer.objects.filter(revision_id=revision, question_sha256=_sha256(given["question"]))
        own = kept.filter(engine=given["engine"]).first() or kept.first()
        rows.append({**given, "before": own.answer if own else ""})
    return rows


def accept(attempt: Attempt, *, actor: User, reason: str) -> None:
    """Take this process's answers as the golden ones of its engine: the next start is compared with them."""
    rows = [row for row in _rows(attempt) if row["before"] and row["before"] != row["answer"]]
    if not rows:
        raise Refused(_("No answer of attempt %(number)d differs from the golden one.") % {"number": attempt.number})
    with transaction.atomic():
        for row in rows:
            GoldenAnswer.objects.update_or_create(
                revision_id=attempt.instance.spec.copy.revision_id,
                engine=row["engine"],
                question_sha256=_sha256(row["question"]),
                defaults={"question": row["question"], "answer": row["answer"], "recorded_at": timezone.now()},
            )
        access.record(
            actor=actor, action="instance.accept_answer", target=str(attempt.instance),
            target_url=f"/instances/{attempt.instance_id}/", reason=reason,
            before=[row["before"] for row in rows], after=[row["answer"] for row in rows],
        )  # fmt: skip
        live.changed("attempt", attempt.pk)


def of_spec(spec: Spec, *, most: int = 8) -> list[contracts.GoldenAnswer]:
    """What is known of this revision: answers of the spec's own engine first, then the newest of others."""
    rows = GoldenAnswer.objects.filter(revision_id=spec.copy.revision_id)[: 4 * most]
    ordered = sorted(rows, key=lambda row: row.engine != spec.engine.key)
    return [
        contracts.GoldenAnswer(question=row.question, answer=row.answer, engine=row.engine) for row in ordered[:most]
    ]


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
