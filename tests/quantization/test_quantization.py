"""Quantising: what may be asked for, what comes of it in the catalogue, what each role sees."""

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from console.access.models import AuditEntry, Role, Team, User
from console.benchmarks.models import Dataset
from console.catalog.models import Copy, Model
from console.common.errors import Refused
from console.jobs import services as jobs
from console.jobs.kinds import handler_of
from console.jobs.models import Job
from console.quantization import services
from console.quantization.models import Quantization, Quantizer
from tests.quantization.conftest import Shop

TEXTS = [f"Question {number}?" for number in range(8)]


def test_llm_compressor_is_brought_to_a_host_and_taken_away(shop: Shop) -> None:
    quantizer = shop.bring()
    assert (str(quantizer), quantizer.present, quantizer.details["torch"]) == ("llm-compressor 0.14.0", True, "2.13.0")
    job = services.remove(quantizer, actor=shop.admin, reason="not needed")
    with pytest.raises(Refused, match="still runs"):
        services.install(shop.fleet.host, actor=shop.admin)
    shop.end(job, "remove_quantizer", key=quantizer.key, freed_bytes=5)
    quantizer.refresh_from_db()
    assert not quantizer.present
    shop.bring()
    assert Quantizer.objects.get().present, "the same one again is the same row"


def test_what_is_made_is_a_verified_model_of_its_own_that_remembers_its_origin(shop: Shop) -> None:
    shop.bring()
    Model.objects.filter(pk=shop.copy.revision.model_id).update(license="Apache-2.0")
    row = shop.make()
    assert row.made
    revision = row.made.revision
    assert (revision.model.name, revision.model.license) == ("Small one 1.5", "Apache-2.0")
    assert (row.made.state, row.made.path, row.made.host_id) == (
        "verified",
        "/models/Small-one-1.5",
        shop.fleet.host.pk,
    )
    assert revision.facts["quantized_from"]["from"] == str(shop.copy.revision)
    assert revision.facts["quantization"] == "compressed-tensors"
    assert row.share == 0.6
    assert row.job
    assert (row.job.state, row.job.subject_id) == ("succeeded", row.made.pk)
    assert AuditEntry.objects.filter(action="model.quantize", reason="smaller").exists()
    assert shop.copy.state == "verified"
    with pytest.raises(Refused, match="quantised already"):
        shop.ask(control=row.made, name="again")


def test_texts_go_to_the_host_and_lie_in_no_payload_of_the_ledger(shop: Shop) -> None:
    shop.bring()
    row = shop.ask(scheme="W8A8", prompts=TEXTS)
    assert row.job
    step = row.job.steps.get(kind="quantize")
    assert step.payload["prompts"] == []
    assert handler_of(row.job).payload(step)["prompts"] == TEXTS


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scheme": "W4A16", "prompts": TEXTS[:2]}, "4 texts at least"),
        ({"name": "taken"}, "with this name already"),
    ],
)
def test_what_can_t_come_to_anything_is_refused(shop: Shop, changes: dict[str, Any], words: str) -> None:
    shop.bring()
    Model.objects.create(name="taken")
    with pytest.raises(Refused, match=words):
        shop.ask(**changes)
    assert not Quantization.objects.exists()


def test_only_a_sound_copy_on_a_host_with_llm_compressor_is_quantised(shop: Shop) -> None:
    quantizer = shop.bring()
    Copy.objects.update(state="unverified")
    with pytest.raises(Refused, match="Verify them first"):
        shop.ask()
    Copy.objects.update(state="verified")
    Quantizer.objects.update(present=False)
    with pytest.raises(Refused, match="is not on"):
        shop.ask(quantizer=Quantizer.objects.get(pk=quantizer.pk))


def test_the_original_is_not_deleted_and_the_tool_not_removed_meanwhile(shop: Shop) -> None:
    quantizer = shop.bring()
    shop.ask()
    with pytest.raises(Refused, match="Small one"):
        services.remove(quantizer, actor=shop.admin, reason="why not")
    with pytest.raises(Refused, match="still runs"):
        shop.ask(name="another")


def test_a_failed_one_leaves_no_copy_and_can_be_retried_while_its_tool_is_there(shop: Shop) -> None:
    shop.bring()
    row = shop.ask()
    assert row.job
    shop.end(row.job, "quantize", failure={"code": "quantize.failed", "message": "no room"})
    job = Job.objects.get(pk=row.job.pk)
    assert (job.state, Copy.objects.count(), Model.objects.count()) == ("failed", 1, 1)
    Quantizer.objects.update(present=False)
    with pytest.raises(Refused, match="is not on"):
        jobs.retry(job, actor=shop.admin)
    Quantizer.objects.update(present=True)
    jobs.retry(job, actor=shop.admin)
    assert Job.objects.get(pk=job.pk).state == "running"


def test_one_whose_files_are_not_sound_is_shown_as_damaged(shop: Shop) -> None:
    shop.bring()
    row = shop.ask()
    assert row.job
    shop.end(row.job, "quantize", model_path="/models/bad", size_bytes=60, source_bytes=100)
    shop.end(row.job, "verify", failure={"code": "weights.missing", "message": "a tensor is missing"})
    made = Quantization.objects.select_related("made").get().made
    assert made
    assert (made.state, made.verification["failure"]["code"]) == ("damaged", "weights.missing")


def test_a_name_that_was_taken_meanwhile_gets_a_number(shop: Shop) -> None:
    shop.bring()
    row = shop.ask()
    Model.objects.create(name="Small one 1.5")
    assert row.job
    shop.end(row.job, "quantize", model_path="/models/x", size_bytes=60, source_bytes=100)
    made = Quantization.objects.select_related("made__revision__model").get().made
    assert made
    assert made.revision.model.name == "Small one 1.5 (2)"


def form(**changes: Any) -> dict[str, Any]:
    quantizer = Quantizer.objects.first()
    return {
        "scheme": "FP8_DYNAMIC", "name": "Small", "quantizer": quantizer.pk if quantizer else "", "max_tokens": 2048,
        "ignore": "lm_head, re:.*router", "reason": "smaller",
    } | changes  # fmt: skip


def test_an_admin_asks_by_the_form(client: Client, shop: Shop) -> None:
    shop.bring()
    client.force_login(shop.admin)
    there = reverse("quantize", args=[shop.copy.pk])
    assert f"{shop.copy.revision.model}-FP8" in client.get(there).content.decode()
    answer = client.post(there, form())
    row = Quantization.objects.get()
    assert row.job
    assert answer.headers["Location"] == reverse("job_detail", args=[row.job.pk])
    assert row.job.steps.get(kind="quantize").payload["ignore"] == ["lm_head", "re:.*router"]
    assert client.get(reverse("job_detail", args=[row.job.pk])).status_code == 200


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scheme": "W8A8", "prompts": "one\ntwo"}, "4 texts at least"),
        ({"scheme": "GGUF"}, "not one of the available choices"),
        ({"name": ""}, "This field is required"),
        ({"quantizer": 999}, "not one of the available choices"),
        ({"max_tokens": 1}, "greater than or equal to 16"),
    ],
)
def test_bad_input_gets_a_clear_error(client: Client, shop: Shop, changes: dict[str, Any], words: str) -> None:
    shop.bring()
    client.force_login(shop.admin)
    answer = client.post(reverse("quantize", args=[shop.copy.pk]), form(**changes))
    assert answer.status_code == 400
    assert words in answer.content.decode()
    assert not Quantization.objects.exists()


def test_conversations_and_prompts_of_a_file_become_texts(client: Client, shop: Shop) -> None:
    shop.bring()
    rows = [{"question": f"Q{number}", "answer": "A"} for number in range(5)]
    dataset = Dataset.objects.create(name="talks", form="conversations", rows=rows, found=5, sha256="0")
    client.force_login(shop.admin)
    client.post(reverse("quantize", args=[shop.copy.pk]), form(scheme="W8A8", dataset=dataset.pk))
    assert Quantization.objects.get().prompts[0] == "Q0\nA"


def test_where_it_is_not_installed_the_pages_say_how_and_offer_nothing(client: Client, shop: Shop) -> None:
    client.force_login(shop.admin)
    part = client.get(reverse("copy_quantization", args=[shop.copy.pk])).content.decode()
    assert "it is not on" in part
    assert reverse("quantizer_install") in part
    assert reverse("quantize", args=[shop.copy.pk]) not in part
    page = client.get(reverse("quantize", args=[shop.copy.pk])).content.decode()
    assert "llm-compressor is not on this host" in page
    assert 'name="scheme"' not in page
    assert "is on none of the hosts" in client.get(reverse("quantization_list")).content.decode()


def test_a_copy_s_page_tells_origin_and_offspring(client: Client, shop: Shop) -> None:
    shop.bring()
    row = shop.make()
    assert row.made
    client.force_login(shop.admin)
    of_made = client.get(reverse("copy_quantization", args=[row.made.pk])).content.decode()
    assert "Compare with the original" in of_made
    assert f"control={shop.copy.pk}&amp;against={row.made.pk}" in of_made
    of_original = client.get(reverse("copy_quantization", args=[shop.copy.pk])).content.decode()
    assert "Small one 1.5" in of_original
    assert "60" in client.get(reverse("quantization_list")).content.decode()
    assert reverse("copy_quantization", args=[row.made.pk]) in client.get(f"/copies/{row.made.pk}/").content.decode()


@pytest.mark.parametrize("role", ["viewer", "operator"])
def test_others_look_and_change_nothing(client: Client, shop: Shop, viewer: User, operator: User, role: str) -> None:
    quantizer = shop.bring()
    client.force_login({"viewer": viewer, "operator": operator}[role])
    for name, args in (("quantization_list", []), ("copy_quantization", [shop.copy.pk])):
        page = client.get(reverse(name, args=args))
        assert page.status_code == 200
        assert reverse("quantizer_install") not in page.content.decode()
        assert reverse("quantize", args=[shop.copy.pk]) not in page.content.decode()
    for name, args in (("quantize", [shop.copy.pk]), ("quantizer_install", []), ("quantizer_remove", [quantizer.pk])):
        assert client.get(reverse(name, args=args)).status_code == 403
        assert client.post(reverse(name, args=args), {}).status_code == 403


def test_an_admin_installs_adopts_and_removes_by_the_forms(client: Client, shop: Shop) -> None:
    client.force_login(shop.admin)
    given = {"host": shop.fleet.host.pk, "how": "adopt", "path": ""}
    assert "Say where it lies" in client.post(reverse("quantizer_install"), given).content.decode()
    relative = client.post(reverse("quantizer_install"), given | {"path": "llmc"}).content.decode()
    assert "absolute path" in relative
    client.post(reverse("quantizer_install"), given | {"path": "/opt/llmc"})
    job = Job.objects.get(kind="install_quantizer")
    assert job.steps.get().payload == {"path": "/opt/llmc", "version": ""}
    shop.end(job, "install_quantizer", key="llmcompressor-0.14.0-abc", version="0.14.0", python="/opt/llmc/bin/python",
             adopted=True)  # fmt: skip
    quantizer = Quantizer.objects.get()
    asked = client.get(reverse("quantizer_remove", args=[quantizer.pk])).content.decode()
    assert "stays where it is" in asked
    client.post(reverse("quantizer_remove", args=[quantizer.pk]), {"reason": "moved"})
    assert Job.objects.filter(kind="remove_quantizer").exists()


def test_another_team_s_copies_and_tools_are_invisible(client: Client, shop: Shop, django_user_model: Any) -> None:
    quantizer = shop.bring()
    stranger = django_user_model.objects.create_user("eve", team=Team.objects.create(name="others"), role=Role.ADMIN)
    client.force_login(stranger)
    assert client.get(reverse("quantize", args=[shop.copy.pk])).status_code == 404
    assert client.get(reverse("copy_quantization", args=[shop.copy.pk])).status_code == 404
    assert client.get(reverse("quantizer_remove", args=[quantizer.pk])).status_code == 404
