"""What keeps alerts quiet: silences, how far they reach, what happens when they end, and rules that are switched off."""

import pytest
from django.test import Client

from console.access.models import User
from console.alerts import sending, services
from console.alerts.models import Delivery, Silence
from console.common.errors import Refused
from console.deployments.models import Brake, Deployment, Instance
from console.fleet.models import Host
from console.oncall import services as oncall
from tests.alerts.conftest import Stage
from tests.alerts.test_channels import Receiver, channel, crash, receiver, recover

__all__ = ["receiver"]
pytestmark = pytest.mark.django_db(transaction=True)


def test_a_silence_keeps_alerts_quiet_and_they_are_shown_all_the_same(
    stage: Stage, receiver: Receiver, operator: User
) -> None:
    channel("webhook", receiver)
    alert = crash(stage)
    services.silence(alert, hours=1, whole=True, actor=operator, reason="maintenance")
    recover(stage)
    sending.send_due()
    # Whoever was told of it waits to hear that it is over.
    assert [body["event"] for body in receiver.bodies] == ["opened", "closed"]
    Instance.objects.update(state="crashed")
    stage.round()
    (second,) = stage.living("crashed")
    assert second.silenced
    recover(stage)
    sending.send_due()
    assert len(receiver.requests) == 2


def test_an_alert_that_outlives_its_silence_is_told_once(stage: Stage, receiver: Receiver, operator: User) -> None:
    channel("webhook", receiver)
    channel("webhook", receiver, name="chiefs", for_escalations=True)
    services.silence(crash(stage), hours=1, whole=True, actor=operator, reason="maintenance")
    recover(stage)
    Delivery.objects.all().delete()
    Instance.objects.update(state="crashed")
    stage.rounds(1200)
    assert not Delivery.objects.exists()
    services.end_silence(Silence.objects.get(), actor=operator)
    Silence.objects.update(ends_at=stage.at)
    stage.rounds(60)
    sending.send_due()
    assert [body["event"] for body in receiver.bodies] == ["opened"]
    (alert,) = stage.living("crashed")
    assert not alert.silenced
    # Its time until it is escalated begins when somebody could hear of it.
    stage.round(860)
    stage.round()
    sending.send_due()
    assert [body["event"] for body in receiver.bodies] == ["opened", "escalated", "escalated"]


def test_an_alert_that_was_told_before_its_silence_is_not_told_again(
    stage: Stage, receiver: Receiver, operator: User
) -> None:
    channel("webhook", receiver)
    services.silence(crash(stage), hours=1, whole=False, actor=operator, reason="known")
    stage.round(3700)
    stage.round()
    sending.send_due()
    assert [body["event"] for body in receiver.bodies] == ["opened"]
    assert not stage.living("crashed")[0].silenced


def test_a_hosts_silence_covers_deployments_that_run_there_alone(stage: Stage, operator: User) -> None:
    stage.only("down")
    oncall.silence(stage.fleet.host, hours=1, actor=operator, reason="a new disk")
    Deployment.objects.update(state="failed")
    stage.round()
    assert stage.living("down")[0].silenced
    other = Host.objects.create(name="gpu-b", public_key="x")
    Instance.objects.create(
        deployment=stage.instance.deployment, spec=stage.instance.spec, host=other, number=2, port=18002, ordered=True
    )
    stage.round()
    assert not stage.living("down")[0].silenced


def test_what_is_about_no_deployment_and_no_host_silences_its_rule_alone(
    stage: Stage, operator: User, client: Client
) -> None:
    stage.only("brake")
    Brake.objects.create(reason="5 of 6 instances turned bad", bad=5, total=6)
    stage.round()
    (alert,) = stage.living("brake")
    with pytest.raises(Refused, match="about no deployment or host"):
        services.silence(alert, hours=1, whole=True, actor=operator, reason="x")
    client.force_login(operator)
    assert "Everything about it" not in client.get(f"/alerts/{alert.pk}/silence/").text
    client.post(f"/alerts/{alert.pk}/silence/", {"hours": "1", "reason": "known", "whole": "on"})
    assert Silence.objects.get().rule == alert.rule


def test_switching_a_rule_off_ends_its_alerts_and_says_so(stage: Stage, receiver: Receiver, admin: User) -> None:
    channel("webhook", receiver)
    rule = crash(stage).rule
    rule.enabled = False
    services.change_rule(rule, actor=admin)
    stage.round()
    sending.send_due()
    assert not stage.living("crashed")
    assert [body["event"] for body in receiver.bodies] == ["opened", "closed"]
    rule.enabled = True
    services.change_rule(rule, actor=admin)
    stage.round()
    assert stage.living("crashed")
