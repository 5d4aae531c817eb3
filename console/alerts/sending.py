"""Sending what is due. A delivery is claimed before it is sent, so that neither two processes nor a restart send it twice."""

import smtplib
from collections.abc import Mapping
from datetime import timedelta
from email.message import EmailMessage
from typing import Any

import httpx2
import structlog
from django.db.models import F
from django.utils import timezone
from django.utils.translation import gettext as _

from console import env
from console.alerts.messages import Message, Said, request
from console.alerts.models import Alert, Channel, Delivery
from console.common.errors import Refused
from console.common.secrets import decrypt

log = structlog.get_logger(__name__)

TIMEOUT_SECONDS = 10
MOST_ATTEMPTS = 8
FIRST_PAUSE_SECONDS = 10
LONGEST_PAUSE_SECONDS = 900
CLAIM_SECONDS = 120
"""A delivery that was claimed so long ago belongs to a process that died: nobody knows whether it arrived."""
KEPT_DAYS = 90
_AT_ONCE = 50


class NotSentError(Exception):
    """A message didn't get through. The text says what, for people."""


def send_due() -> int:
    """Send everything that is due; returns how many were tried."""
    now = timezone.now()
    lost = Delivery.objects.filter(state="sending", claimed_at__lt=now - timedelta(seconds=CLAIM_SECONDS))
    lost.update(state="unsure", error=_("The console ended while it sent this. It is not sent again."))
    tried = 0
    for delivery in Delivery.objects.filter(state="waiting", due_at__lte=now).order_by("pk")[:_AT_ONCE]:
        claimed = Delivery.objects.filter(pk=delivery.pk, state="waiting").update(
            state="sending", claimed_at=now, attempts=F("attempts") + 1
        )
        if claimed:
            delivery.refresh_from_db()
            _send(delivery)
            tried += 1
    return tried


def prune() -> None:
    """Forget deliveries and closed alerts that are older than three months."""
    limit = timezone.now() - timedelta(days=KEPT_DAYS)
    Delivery.objects.filter(created_at__lt=limit).delete()
    Alert.objects.filter(state="closed", closed_at__lt=limit).delete()


def _send(delivery: Delivery) -> None:
    channel = delivery.channel
    try:
        deliver(channel, message_of(delivery))
    except (NotSentError, Refused) as error:
        _failed(delivery, channel, str(error))
    else:
        now = timezone.now()
        Delivery.objects.filter(pk=delivery.pk).update(state="sent", sent_at=now, error="")
        Channel.objects.filter(pk=channel.pk).update(failing_since=None, last_error="", last_sent_at=now)


def _failed(delivery: Delivery, channel: Channel, error: str) -> None:
    now = timezone.now()
    log.warning("alert not sent", channel=channel.name, error=error, attempt=delivery.attempts)
    pause = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** (delivery.attempts - 1))
    over = delivery.attempts >= MOST_ATTEMPTS
    Delivery.objects.filter(pk=delivery.pk).update(
        state="failed" if over else "waiting", due_at=now + timedelta(seconds=pause), error=error
    )
    Channel.objects.filter(pk=channel.pk, failing_since=None).update(failing_since=now)
    Channel.objects.filter(pk=channel.pk).update(last_error=error)


def message_of(delivery: Delivery) -> Message:
    """What a delivery says, as things are now."""
    alerts = delivery.alerts.select_related("rule").order_by("pk")
    said = [_said(alert) for alert in alerts] or [_test()]
    return Message(delivery.event, said, key=f"slipway-{delivery.pk}")


def _said(alert: Alert) -> Said:
    return Said(
        fingerprint=f"{alert.rule_id}-{alert.subject}-{alert.pk}",
        rule=alert.rule.name,
        name=alert.name,
        summary=alert.summary,
        cause=alert.cause,
        severity=alert.severity,
        opened_at=alert.opened_at,
        closed_at=alert.closed_at,
        url=f"{env.public_url()}/alerts/{alert.pk}/",
        labels={str(name): str(value) for name, value in alert.labels.items()},
    )


def _test() -> Said:
    return Said(
        fingerprint="test",
        rule=_("Test of this channel"),
        name="Slipway",
        summary=_("Nothing is wrong: someone tested this channel."),
        cause="",
        severity="info",
        opened_at=timezone.now(),
        closed_at=None,
        url=f"{env.public_url()}/alerts/channels/",
        labels={},
    )


def deliver(channel: Channel, message: Message) -> None:
    """Send one message now. Raises NotSentError with what went wrong."""
    secret = decrypt(channel.secret) if channel.secret else ""
    if channel.kind == "email":
        _mail(channel.settings, secret, message)
        return
    made = request(channel.kind, channel.settings, secret, message)
    try:
        with httpx2.Client(timeout=TIMEOUT_SECONDS, follow_redirects=False) as client:
            answer = client.post(made.url, content=made.body, headers=dict(made.headers))
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise NotSentError(_("It can't be reached: %s") % (str(error) or type(error).__name__)) from error
    if problem := made.accepts(answer.status_code, answer.content):
        raise NotSentError(problem)


def _mail(settings: Mapping[str, Any], secret: str, message: Message) -> None:
    mail = EmailMessage()
    mail["Subject"] = message.title.replace("\n", " ")
    mail["From"] = settings["sender"]
    mail["To"] = ", ".join(settings["recipients"])
    mail["Message-ID"] = f"<{message.key}@slipway>"
    mail.set_content(message.text)
    kind = smtplib.SMTP_SSL if settings.get("security") == "tls" else smtplib.SMTP
    try:
        with kind(settings["server"], int(settings["port"]), timeout=TIMEOUT_SECONDS) as server:
            if settings.get("security") == "starttls":
                server.starttls()
            if settings.get("user"):
                server.login(settings["user"], secret)
            refused = server.send_message(mail)
    except (smtplib.SMTPException, OSError) as error:
        raise NotSentError(_("The mail server did not take it: %s") % error) from error
    if refused:
        raise NotSentError(_("The mail server refused %s.") % ", ".join(refused))
