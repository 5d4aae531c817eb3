"""Pages of alerts: who may see and do what, the editor's preview, and forms that say what is wrong."""

import time
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from console.access.models import AuditEntry, User
from console.alerts.models import Alert, Channel, Rule, Silence
from console.common.models import StateChange
from console.common.secrets import decrypt
from console.deployments.models import Instance
from console.telemetry.models import HOUR, MetricsHour
from tests.alerts.conftest import Stage
from tests.telemetry.samples import busy_columns

pytestmark = pytest.mark.django_db(transaction=True)


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def alert(stage: Stage) -> Alert:
    stage.only("crashed")
    Instance.objects.update(state="crashed", failure={"message": "CUDA out of memory"})
    stage.round()
    return Alert.objects.get()


PAGES = ["alert_list", "open_alerts", "rule_list", "channel_list"]


@pytest.mark.parametrize("name", PAGES)
def test_everybody_who_is_signed_in_sees_the_pages(alert: Alert, viewer: User, name: str) -> None:
    assert signed_in(viewer).get(reverse(name)).status_code == 200
    assert Client().get(reverse(name)).status_code == 302


def test_the_list_says_what_since_when_and_why(alert: Alert, viewer: User) -> None:
    page = signed_in(viewer).get(reverse("alert_list")).content.decode()
    assert "1 open, 1 of them critical; 1 wait for someone" in page
    assert "CUDA out of memory" in page
    assert str(alert.name) in page
    assert reverse("alert_acknowledge", args=[alert.pk]) not in page
    detail = signed_in(viewer).get(reverse("alert_detail", args=[alert.pk])).content.decode()
    assert "CUDA out of memory" in detail


ROLES = {
    "alert_acknowledge": ("operator", {"reason": "on it"}),
    "alert_silence": ("operator", {"hours": "4", "reason": "known"}),
    "rule_edit": ("admin", {}),
    "channel_add": ("admin", {}),
}


@pytest.mark.parametrize("name", list(ROLES))
@pytest.mark.parametrize("who", ["viewer", "operator", "admin"])
def test_roles_decide_who_may_act(alert: Alert, viewer: User, operator: User, admin: User, name: str, who: str) -> None:
    least, data = ROLES[name]
    people = {"viewer": viewer, "operator": operator, "admin": admin}
    arguments = {"channel_add": [], "rule_edit": [alert.rule_id]}.get(name, [alert.pk])
    answer = signed_in(people[who]).post(reverse(name, args=arguments), data)
    allowed = list(people).index(who) >= list(people).index(least)
    assert (answer.status_code != 403) == allowed


def test_another_teams_alert_is_not_there(alert: Alert, viewer: User) -> None:
    from console.access.models import Team

    viewer.team = Team.objects.create(name="others")
    viewer.save()
    assert signed_in(viewer).get(reverse("alert_detail", args=[alert.pk])).status_code == 404
    assert str(alert.name) not in signed_in(viewer).get(reverse("alert_list")).content.decode()


def test_acknowledging_and_silencing_are_recorded_with_their_reason(alert: Alert, operator: User) -> None:
    client = signed_in(operator)
    client.post(reverse("alert_acknowledge", args=[alert.pk]), {"reason": "I look at it"})
    alert.refresh_from_db()
    assert (alert.state, alert.acknowledged_by) == ("acknowledged", operator)
    client.post(reverse("alert_silence", args=[alert.pk]), {"hours": "4", "reason": "new card comes", "whole": "on"})
    silence = Silence.objects.get()
    assert (silence.rule, silence.deployment) == (None, alert.deployment)
    reasons = AuditEntry.objects.filter(action__startswith="alert.").values_list("reason", flat=True)
    assert set(reasons) == {"I look at it", "new card comes"}


def rule_data(**changes: Any) -> dict[str, Any]:
    data = {
        "name": "KV", "condition": "kv_usage", "deployment": "", "threshold": "0.8", "for_seconds": "60",
        "clear_threshold": "", "clear_seconds": "60", "severity": "warning", "escalate_seconds": "0",
        "labels": "team=chat, tier=1", "enabled": "on",
    }  # fmt: skip
    return data | changes


def test_a_rule_is_made_and_changed(stage: Stage, admin: User) -> None:
    client = signed_in(admin)
    assert client.post(reverse("rule_add"), rule_data()).status_code == 302
    rule = Rule.objects.get(name="KV")
    assert rule.labels == {"team": "chat", "tier": "1"}
    assert client.post(reverse("rule_edit", args=[rule.pk]), rule_data(threshold="0.7")).status_code == 302
    rule.refresh_from_db()
    assert rule.threshold == 0.7
    assert client.post(reverse("rule_delete", args=[rule.pk]), {"reason": "no use"}).status_code == 302
    assert not Rule.objects.filter(pk=rule.pk).exists()


@pytest.mark.parametrize(("field", "value", "said"), [("threshold", "x", "number"), ("labels", "tier", "name=value")])
def test_a_wrong_rule_says_what_is_wrong_at_the_field(
    stage: Stage, admin: User, field: str, value: str, said: str
) -> None:
    answer = signed_in(admin).post(reverse("rule_add"), rule_data(**{field: value}))
    assert answer.status_code == 400
    assert said in " ".join(answer.context["form"].errors[field])


def test_a_rule_of_slipway_can_be_switched_off_but_not_deleted(stage: Stage, admin: User) -> None:
    rule = Rule.objects.get(key="hot")
    answer = signed_in(admin).post(reverse("rule_delete", args=[rule.pk]), {"reason": "no GPU here"})
    assert answer.status_code == 400
    assert "Switch it off" in answer.content.decode()


def test_the_preview_plays_the_rule_over_the_stored_minutes(stage: Stage, broker: redis.Redis, admin: User) -> None:
    hour = int(time.time()) // HOUR * HOUR - 5 * HOUR
    columns = busy_columns(hour, 600).regrouped(60)
    columns.values["max.kv_cache_usage"] = [0.2, 0.97, 0.98, 0.2, 0.2, 0.96, 0.2, 0.2, 0.2, 0.2]
    MetricsHour.objects.create(
        instance=stage.instance, resolution_seconds=60, begins_at=hour, packed=columns.pack(hour)
    )
    client = signed_in(admin)
    page = client.post(reverse("rule_preview"), rule_data(threshold="0.9", for_seconds="120")).content.decode()
    assert "It would have fired once." in page
    page = client.post(reverse("rule_preview"), rule_data(threshold="0.9", for_seconds="60")).content.decode()
    assert "It would have fired 2 times." in page
    page = client.post(reverse("rule_preview"), rule_data(threshold="0.99")).content.decode()
    assert "It would not have fired." in page
    page = client.post(reverse("rule_preview"), rule_data(condition="hot")).content.decode()
    assert "no history" in page


def test_the_preview_of_a_state_reads_the_moves_of_the_last_week(stage: Stage, admin: User) -> None:
    def moved(days: float, before: str, after: str, kind: str = "deployments.instance") -> None:
        number = stage.instance.pk if kind.endswith("instance") else stage.instance.deployment_id
        at = timezone.now() - timedelta(days=days)
        StateChange.objects.create(kind=kind, object_id=number, before=before, after=after, at=at)

    client = signed_in(admin)

    def shown(**data: str) -> str:
        return " ".join(client.post(reverse("rule_preview"), rule_data(**data)).content.decode().split())

    StateChange.objects.all().delete()
    assert "It would not have fired." in shown(condition="crashed", for_seconds="0")
    moved(9, "ready", "crashed")
    moved(6, "crashed", "starting")  # it was crashed when the week began
    moved(5, "ready", "crashed")
    moved(4.999, "crashed", "starting")
    moved(2, "ready", "crashed")
    assert "It would have fired 3 times." in shown(condition="crashed", for_seconds="0")
    assert "It would have fired 2 times." in shown(condition="crashed", for_seconds="3600")
    moved(3, "serving", "failed", "deployments.deployment")
    moved(2, "failed", "serving", "deployments.deployment")
    page = shown(condition="down", for_seconds="0")
    assert "It would have fired once." in page
    assert "for 24 h" in page or "for 1 d" in page, page


def test_a_channels_secret_is_stored_encrypted_and_never_shown(admin: User) -> None:
    client = signed_in(admin)
    data = {"name": "chat", "kind": "webhook", "address": "https://example.com/hook", "secret": "sesame",
            "severity": "warning", "enabled": "on"}  # fmt: skip
    assert client.post(reverse("channel_add"), data).status_code == 302
    channel = Channel.objects.get()
    assert "sesame" not in channel.secret
    assert decrypt(channel.secret) == "sesame"
    assert "sesame" not in client.get(reverse("channel_edit", args=[channel.pk])).content.decode()
    client.post(reverse("channel_edit", args=[channel.pk]), data | {"secret": "", "name": "chat 2"})
    channel.refresh_from_db()
    assert (channel.name, decrypt(channel.secret)) == ("chat 2", "sesame")


@pytest.mark.parametrize(
    ("kind", "asks", "leaves"),
    [
        ("email", {"recipients", "server", "secret"}, {"address"}),
        ("slack", {"secret"}, {"address", "server", "recipients"}),
        ("webhook", {"address", "secret"}, {"server", "recipients"}),
    ],
)
def test_a_channels_form_asks_for_what_its_kind_needs_and_keeps_what_was_typed(
    admin: User, kind: str, asks: set[str], leaves: set[str]
) -> None:
    answer = signed_in(admin).get(reverse("channel_add"), {"kind": kind, "name": "night shift", "secret": "sesame"})
    names = {bound.name for bound in answer.context["form"].shown}
    page = answer.content.decode()
    assert asks <= names
    assert not leaves & names
    assert "night shift" in page
    assert "sesame" not in page
    assert not answer.context["form"]["enabled"].value()


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({"kind": "webhook", "address": "no address"}, "address"),
        ({"kind": "webhook", "address": "file:///etc/passwd"}, "address"),
        ({"kind": "slack"}, "secret"),
        ({"kind": "pagerduty"}, "secret"),
        ({"kind": "email", "recipients": "nobody", "sender": "a@b.de", "server": "mx", "port": "25"}, "recipients"),
        ({"kind": "email"}, "server"),
    ],
)
def test_a_channel_that_can_not_work_is_refused_at_its_field(admin: User, data: dict[str, str], field: str) -> None:
    answer = signed_in(admin).post(reverse("channel_add"), {"name": "x", "severity": "warning", **data})
    assert answer.status_code == 400
    assert field in answer.context["form"].errors
    assert answer.context["form"].fields[field].required or data.get(field), "it was called optional"


def test_the_lists_ask_the_same_number_of_queries_however_long_they_are(
    stage: Stage, viewer: User, django_assert_max_num_queries: Any
) -> None:
    rule = stage.only("crashed")
    for number in range(20):
        Alert.objects.create(
            rule=rule, subject=f"x:{number}", name=str(number), summary="s", severity="warning", value=1, worst=1
        )
    client = signed_in(viewer)
    for name in ("alert_list", "rule_list", "channel_list"):
        with django_assert_max_num_queries(14):
            client.get(reverse(name))
