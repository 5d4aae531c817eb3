"""Studies of models: a quantised one beside its unquantised control, by the same arguments on the same device."""

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from console.catalog.models import Copy, Model, Revision
from console.common.errors import Refused
from console.studies import driver, presentation, services
from console.studies.models import Study, Trial
from tests.factories import Fleet
from tests.studies.conftest import Bench
from workers.vllm import quality


def other_copy(bench: Bench, **changes: Any) -> Copy:
    """A quantised model beside the study's own."""
    fleet = bench.stage.fleet
    revision = Revision.objects.create(model=Model.objects.create(name="Small-FP8"), commit="local")
    given = {"revision": revision, "host": fleet.host, "path": "/models/small", "state": "verified"} | changes
    return Copy.objects.create(**given)


def test_a_quantised_model_is_measured_beside_its_unquantised_control(bench: Bench) -> None:
    small = other_copy(bench)
    study = bench.study(changes=None, others=[small])
    assert [one.label for one in study.trials.all()] == ["–", "Small-FP8"]
    bench.drive(study)
    bench.measure(study, 50)
    bench.wrong = {quality.question_set().questions[0].key}
    trial = bench.measure(study, 80)
    assert trial.spec
    assert (trial.spec.copy, trial.spec.arguments) == (small, study.arguments)
    assert trial.benchmark
    assert trial.benchmark.revision == small.revision
    driver.drive_all()
    driver.drive_all()
    study.refresh_from_db()
    shown = presentation.context(study)
    row = shown["rows"][1]
    assert (row.label, row.answered.lost) == ("Small-FP8", (quality.question_set().questions[0].key,))
    assert row.differs("output_tokens_per_second").verdict == "better"
    draft = services.filled_form(trial, actor=bench.admin)
    assert draft.fields["copy"] == str(small.pk)


def test_another_model_must_be_sound_and_on_the_same_host(bench: Bench) -> None:
    small = other_copy(bench, state="unverified")
    with pytest.raises(Refused, match="Verify them first"):
        bench.study(changes=None, others=[small])
    with pytest.raises(Refused, match="is the base itself"):
        bench.study(changes=None, others=[bench.stage.fleet.copy])
    elsewhere = Fleet.make().copy
    with pytest.raises(Refused, match="another host"):
        bench.study(changes=None, others=[elsewhere])
    assert not Study.objects.exists()


def test_a_trial_whose_model_is_gone_is_skipped_and_never_measures_the_base_in_its_place(bench: Bench) -> None:
    study = bench.study(changes=None, others=[other_copy(bench)])
    bench.drive(study)
    bench.measure(study, 50)
    Trial.objects.filter(position=1).update(copy=None)
    driver.drive_all()
    trial = study.trials.get(position=1)
    assert (trial.state, trial.state_reason) == ("skipped", "Its model is gone.")


def test_the_page_of_a_quantised_copy_leads_to_a_form_that_is_filled_in(client: Client, bench: Bench) -> None:
    small, fleet = other_copy(bench), bench.stage.fleet
    client.force_login(bench.admin)
    there = f"{reverse('study_add')}?control={fleet.copy.pk}&against={small.pk}"
    page = client.get(there)
    form = page.context["form"]
    told = {name: form[name].value() for name in ("source", "copy", "engine", "others", "quality")}
    assert told == {
        "source": "own", "copy": fleet.copy.pk, "engine": fleet.engine.pk, "others": [small.pk], "quality": True,
    }  # fmt: skip
    sent = {
        **told, "neighbours": "beside", "together": "one", "profile": "chat", "by": "concurrency", "search": "fixed",
        "values": "1", "requests": 8, "repeats": 2, "warmups": 1, "seed": 0, "reason": "as good?",
    }  # fmt: skip
    client.post(reverse("study_add"), sent)
    study = Study.objects.get()
    assert [one.copy_id for one in study.trials.all()] == [None, small.pk]
    assert study.title == f"{fleet.copy.revision.model}: other models"
    again = client.get(f"{reverse('study_add')}?from={study.pk}").context["form"]
    assert again["others"].value() == [small.pk]
    nothing = client.post(reverse("study_add"), sent | {"others": []})
    assert "at least one change, or another model" in nothing.content.decode()
