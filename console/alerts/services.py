"""What people do with alerts: acknowledge, silence, change rules, add and test channels."""

from datetime import timedelta

from django.db import IntegrityError, transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from console.access import services as access
from console.access.models import User
from console.alerts import evaluation, sending
from console.alerts.models import Alert, Channel, Delivery, Rule, Silence
from console.common import live
from console.common.errors import Refused
from console.common.secrets import encrypt
from console.common.states import move

LONGEST_SILENCE_HOURS = 24 * 30


def acknowledge(alert: Alert, *, actor: User, reason: str) -> None:
    """Say that someone takes care; escalation stops."""
    with transaction.atomic():
        if alert.state == "closed":
            raise Refused(_("This alert is over already."))
        move(alert, to="acknowledged", reason=reason, actor=actor)
        alert.acknowledged_by = actor
        alert.save(update_fields=["acknowledged_by"])
        access.record(
            actor=actor,
            action="alert.acknowledge",
            target=str(alert),
            target_url=f"/alerts/{alert.pk}/",
            reason=reason,
        )
        live.changed("alert", alert.pk)


def silence(alert: Alert, *, hours: float, whole: bool, actor: User, reason: str) -> Silence:
    """Keep alerts like this one quiet for some hours: of its rule, or (`whole`) all about its deployment or host."""
    if not 0 < hours <= LONGEST_SILENCE_HOURS:
        raise Refused(_("Choose between a few minutes and thirty days."), field="hours")
    if whole and not alert.is_about_something:
        # It would be a silence of everything.
        raise Refused(_("This alert is about no deployment or host. Silence its rule alone."), field="whole")
    now = timezone.now()
    with transaction.atomic():
        made = Silence.objects.create(
            team_id=alert.team_id,
            rule=None if whole else alert.rule,
            deployment_id=alert.deployment_id,
            host_id=None if alert.deployment_id else alert.host_id,
            begins_at=now,
            ends_at=now + timedelta(hours=hours),
            reason=reason,
            author=actor,
        )
        Alert.objects.filter(pk=alert.pk).update(silenced=True)
        access.record(
            actor=actor, action="alert.silence", target=str(alert), target_url=f"/alerts/{alert.pk}/", reason=reason
        )
        live.changed("alert", alert.pk)
    return made


def end_silence(silenced: Silence, *, actor: User) -> None:
    """End a silence now."""
    with transaction.atomic():
        Silence.objects.filter(pk=silenced.pk, ends_at__gt=timezone.now()).update(ends_at=timezone.now())
        access.record(actor=actor, action="alert.end_silence", target=silenced.reason[:200], target_url="/alerts/")
        live.changed("alert")


def change_rule(rule: Rule, *, actor: User) -> Rule:
    """Store a rule that a form has filled."""
    with transaction.atomic():
        rule.changed_at = timezone.now()
        rule.save()
        # What was pending was pending under the old rule.
        rule.breaches.exclude(subject__in=rule.alerts.exclude(state="closed").values("subject")).delete()
        if not rule.enabled:
            evaluation.close_all(rule, reason=_("its rule was switched off"), actor=actor)
        access.record(actor=actor, action="alert.change_rule", target=rule.name, target_url=f"/alerts/rules/{rule.pk}/")
        live.changed("alert")
    return rule


def delete_rule(rule: Rule, *, actor: User) -> None:
    """Delete a rule that a person made; those that Slipway brings can only be switched off."""
    if rule.key:
        raise Refused(_("This rule comes with Slipway. Switch it off instead."))
    with transaction.atomic():
        access.record(actor=actor, action="alert.delete_rule", target=rule.name, target_url="/alerts/rules/")
        rule.delete()
        live.changed("alert")


def save_channel(channel: Channel, *, secret: str, actor: User) -> Channel:
    """Store a channel; an empty `secret` keeps the one it has."""
    if secret:
        channel.secret = encrypt(secret)
    try:
        with transaction.atomic():
            channel.save()
            access.record(
                actor=actor,
                action="alert.save_channel",
                target=channel.name,
                target_url=f"/alerts/channels/{channel.pk}/",
            )
            live.changed("alert")
    except IntegrityError:
        raise Refused(_("There is a channel with this name already."), field="name") from None
    return channel


def delete_channel(channel: Channel, *, actor: User) -> None:
    """Delete a channel and what it was to send."""
    with transaction.atomic():
        access.record(actor=actor, action="alert.delete_channel", target=channel.name, target_url="/alerts/channels/")
        channel.delete()
        live.changed("alert")


def test_channel(channel: Channel, *, actor: User) -> str:
    """Send a test message now; returns what went wrong, or nothing."""
    now = timezone.now()
    delivery = Delivery.objects.create(channel=channel, event="test", state="sending", attempts=1, claimed_at=now)
    access.record(actor=actor, action="alert.test_channel", target=channel.name, target_url="/alerts/channels/")
    try:
        sending.deliver(channel, sending.message_of(delivery))
    except (sending.NotSentError, Refused) as error:
        Delivery.objects.filter(pk=delivery.pk).update(state="failed", error=str(error))
        return str(error)
    Delivery.objects.filter(pk=delivery.pk).update(state="sent", sent_at=timezone.now())
    Channel.objects.filter(pk=channel.pk).update(failing_since=None, last_error="", last_sent_at=timezone.now())
    return ""
