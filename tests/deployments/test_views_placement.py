"""Placement on pages: the table beside the form, what a change will do, labels, restarting one at a time."""

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from console.access.models import AuditEntry, User
from console.deployments import changes
from console.deployments.models import Claim, Deployment, Instance, Spec
from console.fleet.models import Device, Host
from console.jobs.models import Job
from tests.deployments.test_claims import give_gpus, twin
from tests.deployments.test_fitting import llama
from tests.deployments.test_services import serve
from tests.deployments.test_views_form import errors_of, filled, signed_in
from tests.factories import Fleet

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def gpus(fleet: Fleet) -> Fleet:
    give_gpus(fleet, 79, 20)
    fleet.copy.revision.shape = llama()
    fleet.copy.revision.save()
    return fleet


def preview(client: Client, data: dict[str, Any]) -> str:
    return client.post(reverse("deployment_preview"), data).content.decode()


def test_the_table_says_of_every_device_why_it_was_taken_or_not(gpus: Fleet, admin: User) -> None:
    text = preview(signed_in(admin), filled(gpus))
    assert "1 replica has its place on 1 host." in text
    assert "H100 #0" in text
    assert "53.6 GiB too little. 60 GiB are held by others." in text


def test_pack_says_which_share_the_engine_is_told_and_tells_it(gpus: Fleet, admin: User) -> None:
    client = signed_in(admin)
    text = preview(client, filled(gpus, placement="pack", arg_max_model_len="2048"))
    assert "--gpu-memory-utilization 0.2" in text
    assert "May be used" in text
    assert "0.92 of the device" not in text
    assert client.post(
        reverse("deployment_add"), filled(gpus, placement="pack", arg_max_model_len="2048")
    ).status_code == 302  # fmt: skip
    claim = Claim.objects.get()
    assert claim.device.index == 1
    preflight = Job.objects.get().steps.get(kind="preflight")
    assert preflight.payload["arguments"][-2] == "--gpu-memory-utilization"
    assert claim.nbytes >= float(preflight.payload["arguments"][-1]) * claim.device.memory_total - 1


def test_labels_and_strategy_reach_the_spec_and_the_table(gpus: Fleet, admin: User) -> None:
    client, data = signed_in(admin), filled(gpus, placement="spread", labels="zone=a !spot", replicas="1")
    assert "it has no label zone=a" in preview(client, data)
    assert "no label zone=a" in errors_of(client, data)["placement"][0]
    assert "can&#x27;t take it: it has no label zone=a." in preview(client, data)
    Host.objects.filter(pk=gpus.host.pk).update(labels={"zone": "a"})
    assert client.post(reverse("deployment_add"), data).status_code == 302
    assert Spec.objects.get().placement == {"strategy": "spread", "labels": {"spot": "!", "zone": "a"}}


@pytest.mark.parametrize("placement", ["pack", "spread"])
def test_the_sum_is_that_of_the_host_where_it_goes_not_of_the_one_that_the_form_names(
    fleet: Fleet, admin: User, placement: str
) -> None:
    other = twin(fleet)
    fleet.copy.revision.shape = llama()
    fleet.copy.revision.save()
    Device.objects.filter(host=fleet.host).update(memory_free=2 * 2**30)
    Device.objects.filter(host=other).update(name="L40S", memory_total=48 * 2**30, memory_free=47 * 2**30)
    client, data = signed_in(admin), filled(fleet, placement=placement, arg_max_model_len="2048")
    text = preview(client, data)
    assert f"{other.name} · L40S #0" in text
    assert "doesn&#x27;t fit" not in text
    assert client.post(reverse("deployment_add"), data).status_code == 302
    assert Instance.objects.get().host == other


def test_of_replicas_on_unlike_devices_the_tightest_is_shown(fleet: Fleet, admin: User) -> None:
    other = twin(fleet)
    fleet.copy.revision.shape = llama()
    fleet.copy.revision.save()
    Device.objects.filter(host=other).update(name="L40S", memory_total=48 * 2**30, memory_free=47 * 2**30)
    text = preview(signed_in(admin), filled(fleet, placement="spread", replicas="2", arg_max_model_len="2048"))
    assert "2 replicas have their places on 2 hosts." in text
    assert f"{other.name} · L40S #0" in text
    assert f"{fleet.host.name} · H100 #0" not in text


def test_the_card_is_for_the_device_that_the_table_takes_while_another_engine_has_not_loaded_yet(
    fleet: Fleet, admin: User
) -> None:
    give_gpus(fleet, 79, 78)
    fleet.copy.revision.shape = llama()
    fleet.copy.revision.save()
    fleet.deploy(admin, name="loading", arguments=["--gpu-memory-utilization", "0.5"])
    assert Claim.objects.get().device.index == 0
    client = signed_in(admin)
    fits = client.post(reverse("deployment_preview"), filled(fleet, arg_max_model_len="2048"))
    [bar] = fits.context["card"]["bars"]
    assert bar.title == "H100 #1"
    assert fits.context["card"]["verdict"]["word"] == "fits"
    assert "1 replica has its place on 1 host." in fits.content.decode()
    taken = client.post(reverse("deployment_preview"), filled(fleet, devices=["GPU-0"], arg_max_model_len="2048"))
    [bar] = taken.context["card"]["bars"]
    parts = {one.role: one.nbytes for one in bar.segments}
    assert (parts["claimed"], parts["others"]) == (40 * 2**30, 2**30)
    assert "39.0 GiB are free" in taken.context["card"]["verdict"]["text"]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"placement": "manual"}, "placement"),
        ({"placement": "spread", "devices": ["GPU-0"]}, "devices"),
        ({"labels": "no/good!"}, "labels"),
        ({"labels": "zone="}, "labels"),
        ({"replicas": "2"}, "replicas"),
        ({"replicas": "2", "port": "18001"}, "port"),
    ],
)
def test_what_can_not_be_placed_is_refused_at_its_field(
    gpus: Fleet, admin: User, given: dict[str, Any], field: str
) -> None:
    assert field in errors_of(signed_in(admin), filled(gpus, **given))
    assert not Deployment.objects.exists()


def test_only_admins_set_labels_of_a_host_and_it_is_recorded(
    fleet: Fleet, admin: User, operator: User, viewer: User
) -> None:
    url = reverse("host_labels", args=[fleet.host.pk])
    for person in (viewer, operator):
        assert signed_in(person).post(url, {"labels": "zone=a"}).status_code == 403
    assert signed_in(admin).post(url, {"labels": "zone=a b@d"}).status_code == 400
    assert signed_in(admin).post(url, {"labels": "zone=a, spot"}).status_code == 302
    fleet.host.refresh_from_db()
    assert fleet.host.labels == {"zone": "a", "spot": ""}
    assert AuditEntry.objects.get(action="host.labels").target == fleet.host.name
    assert "zone=a" in signed_in(viewer).get(reverse("host_detail", args=[fleet.host.pk])).content.decode()


def test_operators_restart_one_at_a_time_and_viewers_do_not(
    broker: Any, fleet: Fleet, operator: User, viewer: User
) -> None:
    deployment = serve(broker, fleet, fleet.deploy()).deployment
    url = reverse("deployment_restart", args=[deployment.pk])
    assert signed_in(viewer).post(url, {"reason": "x"}).status_code == 403
    assert "Its only engine ends" in signed_in(operator).get(url).content.decode()
    assert signed_in(operator).post(url, {"reason": "new driver"}).status_code == 302
    assert Job.objects.first().kind == "rolling_restart"


def wish(deployment: Deployment, **changed: Any) -> changes.Wish:
    held = changes.Wish.of_spec(deployment.current_spec)
    return changes.Wish(**({name: getattr(held, name) for name in held.__dataclass_fields__} | changed))


def test_a_change_brings_the_new_engine_up_beside_the_old_where_there_is_room(
    broker: Any, fleet: Fleet, admin: User
) -> None:
    give_gpus(fleet, 79, 79)
    old = serve(broker, fleet, fleet.deploy())
    Device.objects.filter(index=old.claims.get().device.index).update(memory_free=5 * 2**30)
    deployment = Deployment.objects.get()
    planned = changes.effect(deployment, wish(deployment, arguments=["--enforce-eager", "--max-num-seqs", "8"]))
    assert "There is room for both" in " ".join(planned.sentences)
    Instance.objects.filter(pk=old.pk).update(state="crashed")
    changed = wish(deployment, arguments=["--enforce-eager", "--max-num-seqs", "8"])
    assert "goes on serving" not in (words := " ".join(changes.effect(deployment, changed).sentences))
    assert "Nothing of it serves now" in words
    Instance.objects.filter(pk=old.pk).update(state="ready")
    job = changes.change(
        deployment, wish(deployment, arguments=["--enforce-eager", "--max-num-seqs", "8"]), reason="more", actor=admin
    )
    assert [(step.kind) for step in job.steps.all()] == [
        "preflight", "verify", "launch", "listening", "validate", "warmup", "stop",
    ]  # fmt: skip
    new = Instance.objects.exclude(pk=old.pk).get()
    assert new.claims.get().device != old.claims.get().device
    old.refresh_from_db()
    assert (old.state, old.run) == ("ready", True)


def test_a_change_swaps_in_place_where_there_is_no_room_for_both(broker: Any, fleet: Fleet) -> None:
    give_gpus(fleet, 79)
    serve(broker, fleet, fleet.deploy())
    Device.objects.update(memory_free=5 * 2**30)
    deployment = Deployment.objects.get()
    planned = changes.effect(deployment, wish(deployment, arguments=["--max-num-seqs", "8"]))
    assert "Then its engine ends" in " ".join(planned.sentences)
    assert [(turn.place, turn.stop) for turn in planned.turns] == [(None, False)]


def test_where_there_is_room_beside_for_some_only_each_replica_s_turn_is_told(broker: Any, fleet: Fleet) -> None:
    give_gpus(fleet, 79, 79, 79)
    serve(broker, fleet, fleet.deploy(replicas=2))
    Instance.objects.update(state="ready", ordered=True, run=True)
    taken = Claim.objects.values_list("device", flat=True)
    Device.objects.filter(pk__in=taken).update(memory_free=5 * 2**30)
    deployment = Deployment.objects.get()
    planned = changes.effect(deployment, wish(deployment, arguments=["--max-num-seqs", "8"]))
    assert [turn.place is None for turn in planned.turns] == [False, True]
    words = " ".join(planned.sentences)
    assert f"{deployment} #1: there is room for both" in words
    assert f"{deployment} #2: there is no room for both" in words
    assert "new ones get no answer" not in words


def test_one_more_replica_is_added_and_one_less_ends_without_touching_the_rest(
    broker: Any, fleet: Fleet, admin: User
) -> None:
    give_gpus(fleet, 79, 79)
    first = serve(broker, fleet, fleet.deploy())
    Device.objects.filter(index=first.claims.get().device.index).update(memory_free=5 * 2**30)
    deployment = Deployment.objects.get()
    more = changes.effect(deployment, wish(deployment, replicas=2))
    assert more.sentences == ("1 replica is added.",)
    job = changes.change(deployment, wish(deployment, replicas=2), reason="load", actor=admin)
    assert job.steps.first().kind == "preflight"
    assert Claim.objects.count() == 2
    first.refresh_from_db()
    assert first.state == "ready"
