"""Adapters of deployments: what is refused before anything is sent, what hosts are told, what their reports do."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from console.access.models import AuditEntry, Team, User
from console.catalog.models import Copy, Model, Revision
from console.common.errors import Refused
from console.common.models import StateChange
from console.deployments import adapters, changes, observations
from console.deployments.models import Adapter, AdapterLoad, Attempt, Deployment, Instance
from console.fleet.models import Host
from console.jobs import copy_jobs, copy_sharing
from console.jobs.copy_checks import store_damage, store_verification
from console.jobs.models import Job
from tests.factories import Fleet
from workers.contracts import AdapterSeen, AdaptersObserved, Failure

pytestmark = pytest.mark.django_db

LORA = ["--enable-lora", "--max-lora-rank", "16", "--max-loras", "2"]
CONFIG = {"hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3, "num_hidden_layers": 30}
FILES = [{"path": "adapter_config.json", "size": 10, "mtime_ns": 1, "inode": 2, "sha256": "0" * 64}]


def facts(**changed: Any) -> dict[str, Any]:
    adapter = {"base_model": "", "rank": 8, "modules": {"q_proj": [576, 576]}, "layers": 30, **changed}
    return {"kind": "adapter", "adapter": adapter}


def adapter_on(host: Host, name: str = "polite", *, state: str = "verified", **changed: Any) -> Revision:
    revision = Revision.objects.create(model=Model.objects.create(name=name), commit="local", facts=facts(**changed))
    Copy.objects.create(
        revision=revision, host=host, path=f"/adapters/{name}", state=state, manifest={"files": FILES}, size_bytes=10
    )
    return revision


@pytest.fixture
def deployment(fleet: Fleet, admin: User) -> Deployment:
    """Serving on one instance, with adapters on."""
    fleet.deploy(admin, name="chat", arguments=LORA)
    Job.objects.update(state="succeeded", finished_at=timezone.now())
    Instance.objects.update(state="ready", port=18001, ordered=True, run=True, bring_up="agent")
    Deployment.objects.update(state="serving")
    # However slow the machine is, the host is not silent.
    Host.objects.update(last_seen_at=timezone.now() + timedelta(hours=1))
    fleet.copy.revision.shape = {"config": CONFIG}
    fleet.copy.revision.save()
    made = Deployment.objects.get(name="chat")
    Attempt.objects.create(instance=made.instances.get(), number=1, started_at=timezone.now())
    return made


def add(deployment: Deployment, revision: Revision, admin: User, name: str = "polite", **given: Any) -> Adapter:
    return adapters.add(deployment, name=name, revision=revision, actor=admin, **({"other_base": False} | given))


def seen(adapter: Adapter, state: str, *, attempt: int = 1, **given: Any) -> AdaptersObserved:
    instance = adapter.deployment.instances.get()
    one = AdapterSeen.model_validate({"name": adapter.name, "load": adapter.load, "state": state, **given})
    return AdaptersObserved(instance=instance.uuid, attempt=attempt, adapters=[one])


def state_of(adapter: Adapter) -> str:
    return str(AdapterLoad.objects.get(adapter=adapter).state)


def test_an_adapter_whose_files_are_verified_is_ordered_and_its_load_is_queued(
    deployment: Deployment, fleet: Fleet, admin: User
) -> None:
    generation = Host.objects.get(pk=fleet.host.pk).generation
    adapter = add(deployment, adapter_on(fleet.host), admin)
    (order,) = observations.order(deployment.instances.get()).adapters
    assert (order.name, order.path, order.load) == ("polite", "/adapters/polite", adapter.load)
    assert [one.path for one in order.files] == ["adapter_config.json"]
    assert state_of(adapter) == "queued"
    assert Host.objects.get(pk=fleet.host.pk).generation > generation
    assert AuditEntry.objects.filter(action="adapter.add", target="chat: polite").exists()
    assert not Job.objects.exclude(state="succeeded").exists()


def test_reports_move_the_state_and_one_about_an_older_process_or_order_counts_no_more(
    deployment: Deployment, fleet: Fleet, admin: User
) -> None:
    adapter, instance = add(deployment, adapter_on(fleet.host), admin), deployment.instances.get()
    adapters.observed(instance, seen(adapter, "loading"))
    adapters.observed(instance, seen(adapter, "loaded"))
    assert state_of(adapter) == "loaded"
    failure = Failure(code="adapter.refused", message="rank 64 is too much", next="Lower it.")
    adapters.observed(instance, seen(adapter, "failed", failure=failure))
    load = AdapterLoad.objects.get()
    assert (load.state, load.state_reason, load.failure["next"]) == ("failed", "rank 64 is too much", "Lower it.")
    Attempt.objects.create(instance=instance, number=2, started_at=timezone.now())
    adapters.observed(instance, seen(adapter, "loaded"))
    assert state_of(adapter) == "failed"
    adapters.observed(instance, seen(adapter, "loaded", attempt=2, load=adapter.load - 1))
    assert state_of(adapter) == "failed"
    adapters.observed(instance, seen(adapter, "loaded", attempt=2))
    assert state_of(adapter) == "loaded"
    moves = StateChange.objects.filter(kind="deployments.adapterload").order_by("pk").values_list("after", flat=True)
    assert list(moves) == ["loading", "loaded", "failed", "loaded"]


def test_a_new_process_has_none_until_its_host_says_so(deployment: Deployment, fleet: Fleet, admin: User) -> None:
    adapter, instance = add(deployment, adapter_on(fleet.host), admin), deployment.instances.get()
    adapters.observed(instance, seen(adapter, "loaded"))
    started = {"instance": str(instance.uuid), "number": 2, "pid": 1, "argv": [], "environment": {}, "started_at": 1.0}
    observations.attempt_started(instance, observations.AttemptStarted.model_validate(started))
    assert state_of(adapter) == "queued"


def test_loading_again_is_another_order_and_waits_for_its_own_report(
    deployment: Deployment, fleet: Fleet, admin: User
) -> None:
    adapter, instance = add(deployment, adapter_on(fleet.host), admin), deployment.instances.get()
    before = seen(adapter, "loaded")
    adapters.observed(instance, before)
    adapters.load_again(adapter, actor=admin, reason="new weights")
    assert state_of(adapter) == "queued"
    adapters.observed(instance, before)
    assert state_of(adapter) == "queued"
    adapter.refresh_from_db()
    adapters.observed(instance, seen(adapter, "loaded"))
    assert state_of(adapter) == "loaded"


def test_what_is_removed_is_ordered_no_more_and_its_name_is_free(
    deployment: Deployment, fleet: Fleet, admin: User
) -> None:
    revision = adapter_on(fleet.host)
    adapters.remove(add(deployment, revision, admin), actor=admin, reason="old")
    assert observations.order(deployment.instances.get()).adapters == []
    add(deployment, revision, admin)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"rank": 64}, "rank 64; the engines take 16 at most. Change the deployment: --max-lora-rank 64"),
        ({"modules": {"q_proj": [2048, 2048]}}, "an input of width 2048"),
        ({"layers": 99}, "the model has 30 layers"),
        ({"base_model": "org/Another-7B"}, "its base is org/Another-7B"),
    ],
)
def test_an_adapter_that_could_not_be_loaded_is_refused_before_anything_is_sent(
    deployment: Deployment, fleet: Fleet, admin: User, changed: dict[str, Any], words: str
) -> None:
    generation = Host.objects.get(pk=fleet.host.pk).generation
    with pytest.raises(Refused, match=words):
        add(deployment, adapter_on(fleet.host, **changed), admin)
    assert not Adapter.objects.exists()
    assert Host.objects.get(pk=fleet.host.pk).generation == generation


def test_a_base_of_another_name_is_taken_on_a_persons_word_and_of_the_same_name_without(
    deployment: Deployment, fleet: Fleet, admin: User
) -> None:
    add(deployment, adapter_on(fleet.host, "a", base_model="org/Another"), admin, "a", other_base=True)
    model = fleet.copy.revision.model.name
    add(deployment, adapter_on(fleet.host, "b", base_model=f"someone/{model.lower()}/"), admin, "b")


def test_engines_without_lora_take_none(fleet: Fleet, admin: User) -> None:
    fleet.deploy(admin, name="plain")
    with pytest.raises(Refused, match="without --enable-lora"):
        add(Deployment.objects.get(name="plain"), adapter_on(fleet.host), admin)


def test_what_it_would_cost_is_said_before_it_is_switched_on(fleet: Fleet, admin: User, client: Client) -> None:
    fleet.deploy(admin, name="plain")
    fleet.copy.revision.shape = {"config": CONFIG | {"intermediate_size": 1536}}
    fleet.copy.revision.save()
    client.force_login(admin)
    page = client.get(reverse("adapter_add", args=[Deployment.objects.get(name="plain").pk])).content.decode()
    assert "With --enable-lora each device keeps about 9.3 MiB aside for 1 at a time, of rank 16 at most" in page


def test_a_name_that_the_engines_serve_is_refused(deployment: Deployment, fleet: Fleet, admin: User) -> None:
    revision = adapter_on(fleet.host)
    with pytest.raises(Refused, match="serve “chat” already"):
        add(deployment, revision, admin, "chat")
    add(deployment, revision, admin, "polite")
    with pytest.raises(Refused, match="has an adapter of this name"):
        add(deployment, revision, admin, "polite")


def test_files_that_are_not_verified_are_verified_first_and_ordered_then(
    deployment: Deployment, fleet: Fleet, admin: User
) -> None:
    revision = adapter_on(fleet.host, state="unverified")
    add(deployment, revision, admin)
    job = Job.objects.exclude(state="succeeded").get()
    assert (job.kind, job.subject_kind) == ("verify", "copy")
    assert observations.order(deployment.instances.get()).adapters == []
    generation = Host.objects.get(pk=fleet.host.pk).generation
    copy = revision.copies.get()
    store_verification(copy, {"manifest": FILES, "size_bytes": 10, "details": facts()})
    assert len(observations.order(deployment.instances.get()).adapters) == 1
    assert Host.objects.get(pk=fleet.host.pk).generation > generation


def test_a_copy_that_was_found_damaged_is_unloaded_with_the_reason(
    deployment: Deployment, fleet: Fleet, admin: User
) -> None:
    revision = adapter_on(fleet.host)
    adapter = add(deployment, revision, admin)
    adapters.observed(deployment.instances.get(), seen(adapter, "loaded"))
    store_damage(revision.copies.get(), {"code": "digest.mismatch", "message": "bad sum"})
    assert observations.order(deployment.instances.get()).adapters == []
    load = AdapterLoad.objects.get()
    assert (load.state, load.failure["code"]) == ("failed", "adapter.unverified")


def test_a_copy_that_engines_read_as_an_adapter_is_not_deleted(
    deployment: Deployment, fleet: Fleet, admin: User
) -> None:
    adapter = add(deployment, adapter_on(fleet.host), admin)
    with pytest.raises(Refused, match="chat serves from this copy"):
        copy_jobs.delete(adapter.revision.copies.get(), actor=admin, reason="space")
    adapters.remove(adapter, actor=admin, reason="old")
    assert copy_jobs.delete(adapter.revision.copies.get(), actor=admin, reason="space")


def test_a_host_that_can_get_the_files_from_nowhere_is_named(deployment: Deployment, fleet: Fleet, admin: User) -> None:
    other = Fleet.make()
    revision = adapter_on(other.host, state="unverified")
    with pytest.raises(Refused, match=f"{fleet.host} has not the files of polite"):
        add(deployment, revision, admin)
    assert not Adapter.objects.exists()


def test_a_host_that_becomes_one_later_fetches_the_files_from_who_has_them(
    deployment: Deployment, fleet: Fleet, admin: User
) -> None:
    adapter = add(deployment, adapter_on(fleet.host), admin)
    other, instance = Fleet.make(), deployment.instances.get()
    copy = Copy.objects.get(host=fleet.host, revision=adapter.revision)
    Copy.objects.filter(pk=copy.pk).update(verification={"mode": "full"})
    Instance.objects.filter(pk=instance.pk).update(host=other.host)
    instance.refresh_from_db()
    adapters.attend(instance)
    job = Job.objects.exclude(state="succeeded").get()
    fetching = job.steps.get(kind="download")
    assert (job.kind, fetching.host) == (copy_sharing.KIND, other.host)


def test_a_change_that_would_lose_adapters_is_refused(deployment: Deployment, fleet: Fleet, admin: User) -> None:
    add(deployment, adapter_on(fleet.host), admin)
    spec = deployment.current_spec
    assert spec is not None
    losing = [(["--enforce-eager"], "Without --enable-lora"), (["--enable-lora", "--max-lora-rank", "1"], "rank 8")]
    for arguments, words in losing:
        wish = changes.Wish.of_spec(spec)
        wish.arguments[:] = arguments
        with pytest.raises(Refused, match=words):
            changes.effect(deployment, wish)


def test_the_card_says_where_each_is_loaded_and_what_each_role_may_do(
    deployment: Deployment, fleet: Fleet, admin: User, client: Client, viewer: User, operator: User
) -> None:
    adapter = add(deployment, adapter_on(fleet.host), admin)
    failure = Failure(code="adapter.changed", message="files were touched", next="Verify them.")
    adapters.observed(deployment.instances.get(), seen(adapter, "failed", failure=failure))
    page = reverse("deployment_detail", args=[deployment.pk])
    allowed = {viewer: (), operator: ("load-again",), admin: ("load-again", "adapters/add", "/remove/")}
    for person, acts in allowed.items():
        client.force_login(person)
        text = client.get(page).content.decode()
        assert "files were touched" in text
        assert "Verify them." in text
        assert "loaded in 0 of 1" in text
        assert "No route leads to this deployment" in text
        assert [act in text for act in ("load-again", "adapters/add", "/remove/")] == [
            act in acts for act in ("load-again", "adapters/add", "/remove/")
        ]


def test_each_act_asks_for_the_right_that_it_needs(
    deployment: Deployment, fleet: Fleet, admin: User, client: Client, viewer: User, operator: User
) -> None:
    adapter = add(deployment, adapter_on(fleet.host), admin)
    addresses = {
        "adapter_add": ([deployment.pk], (admin,)),
        "adapter_load_again": ([deployment.pk, adapter.pk], (operator, admin)),
        "adapter_remove": ([deployment.pk, adapter.pk], (admin,)),
    }
    for name, (arguments, may) in addresses.items():
        for person in (viewer, operator, admin):
            client.force_login(person)
            assert client.get(reverse(name, args=arguments)).status_code == (200 if person in may else 403)


def test_the_form_adds_one_and_shows_at_its_field_why_another_is_refused(
    deployment: Deployment, fleet: Fleet, admin: User, client: Client
) -> None:
    client.force_login(admin)
    address = reverse("adapter_add", args=[deployment.pk])
    assert "No adapter is known yet" in client.get(address).content.decode()
    revision = adapter_on(fleet.host, base_model="org/Another")
    page = client.get(address).content.decode()
    assert "rank 8 · org/Another" in page
    assert "--max-lora-rank" in page
    answer = client.post(address, {"revision": revision.pk, "name": "polite"})
    assert answer.status_code == 400
    assert "its base is org/Another" in answer.content.decode()
    answer = client.post(address, {"revision": revision.pk, "name": "po lite", "other_base": "on"})
    assert "Use letters, digits" in answer.content.decode()
    answer = client.post(address, {"revision": revision.pk, "name": "polite", "other_base": "on"})
    assert answer.status_code == 302
    assert Adapter.objects.get().name == "polite"
    again = reverse("adapter_load_again", args=[deployment.pk, Adapter.objects.get().pk])
    assert client.post(again, {"reason": "why not"}).status_code == 302
    remove = reverse("adapter_remove", args=[deployment.pk, Adapter.objects.get().pk])
    assert client.post(remove, {"reason": ""}).status_code == 400
    assert client.post(remove, {"reason": "done"}).status_code == 302
    assert not Adapter.objects.exists()


def test_another_teams_adapters_are_nobodys_business(
    deployment: Deployment, fleet: Fleet, admin: User, client: Client
) -> None:
    adapter = add(deployment, adapter_on(fleet.host), admin)
    admin.team = Team.objects.create(name="others")
    admin.save()
    client.force_login(admin)
    for name in ("adapter_load_again", "adapter_remove"):
        assert client.post(reverse(name, args=[deployment.pk, adapter.pk]), {"reason": "x"}).status_code == 404
