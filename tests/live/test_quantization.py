"""A real llm-compressor quantises a real model, and a study of real engines compares it with its original."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.benching import ARGUMENTS, ENDED, LOAD, engine_of
from tests.live.conftest import ENGINE, MODEL, engine_cache
from tests.live.harness import LiveConsole, wait_for

pytestmark = [pytest.mark.live, pytest.mark.long, pytest.mark.timeout(3000)]

FOUND = sorted((engine_cache() / "engines" / "quantizers").glob("llmcompressor-*/quantizer.json"))


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveConsole]:
    if not FOUND:
        pytest.skip("no llm-compressor: `python -m tests.engine --quantizer` installs one")
    home = tmp_path_factory.mktemp("quantization")
    for folder, name in (("engines", ENGINE), ("models", MODEL)):
        (home / folder).mkdir()
        (home / folder / name).symlink_to(engine_cache() / folder / name)
    made = LiveConsole(home)
    with made.running():
        yield made


@pytest.fixture(scope="module")
def control(console: LiveConsole) -> int:
    """The unquantised original."""
    host = console.one("select id from fleet_host where name = 'local'")
    console.post(
        "/models/new/", {"name": MODEL, "host": host, "path": str((console.home / "models" / MODEL).resolve())}
    )
    return int(wait_for(
        "the copy is verified", lambda: console.one("select id from catalog_copy where state = 'verified'"), seconds=300
    ))  # fmt: skip


@pytest.fixture(scope="module")
def quantizer(console: LiveConsole) -> int:
    """llm-compressor, adopted where the cache has it."""
    host = console.one("select id from fleet_host where name = 'local'")
    python = json.loads(FOUND[-1].read_text())["python"]
    answer = console.post("/quantization/install/", {"host": host, "how": "adopt", "path": python})
    console.wait_job(job_of(str(answer.url), answer.text), seconds=600)
    return int(console.one("select id from quantization_quantizer where present"))


def job_of(url: str, text: str) -> int:
    job = re.search(r"/jobs/(\d+)/", url)
    assert job, text[:4000]
    return int(job[1])


def quantised(console: LiveConsole, control: int, quantizer: int, scheme: str) -> int:
    """Make one by the form; returns its copy, which is verified."""
    form = {"scheme": scheme, "name": f"SmolLM2 {scheme}", "quantizer": quantizer, "prompts": "",
            "max_tokens": 128, "ignore": "lm_head", "reason": "smaller"}  # fmt: skip
    answer = console.post(f"/copies/{control}/quantize/", form)
    console.wait_job(job_of(str(answer.url), answer.text), seconds=1500)
    rows = console.rows(
        "select c.id, c.state, c.path, q.size_bytes, q.source_bytes from quantization_quantization q"
        " join catalog_copy c on c.id = q.made_id where q.scheme = ?", scheme,
    )  # fmt: skip
    copy, state, path, size, before = rows[0]
    assert state == "verified"
    assert size < 0.85 * before, "half of each layer's weights; embeddings stay"
    config = json.loads((Path(path) / "config.json").read_text())
    assert config["quantization_config"]["quant_method"] == "compressed-tensors"
    return int(copy)


def test_a_model_is_quantised_to_floats_of_eight_bits(console: LiveConsole, control: int, quantizer: int) -> None:
    copy = quantised(console, control, quantizer, "FP8_DYNAMIC")
    part = console.get(f"/copies/{copy}/quantization/").text
    assert MODEL in part
    assert "Compare with the original" in part


def test_one_of_eight_bit_integers_serves_and_is_compared_with_its_control(
    console: LiveConsole, control: int, quantizer: int
) -> None:
    copy = quantised(console, control, quantizer, "W8A8")
    form = LOAD | {
        "source": "own", "copy": control, "engine": engine_of(console), "arguments": ARGUMENTS, "others": [copy],
        "neighbours": "beside", "values": "2", "requests": 8, "quality": "on", "title": "As good?", "reason": "live",
    }  # fmt: skip
    answer = console.post("/studies/new/", form)
    found = re.search(r"/studies/(\d+)/", str(answer.url))
    assert found, answer.text[:4000]
    state = "select state from studies_study where id = ?"
    wait_for("the study ends", lambda: console.one(state, found[1]) in ENDED, seconds=1300, every=1)
    trials = console.rows(
        "select label, state, state_reason, quality from studies_trial where study_id = ? order by position", found[1]
    )
    assert [row[:2] for row in trials] == [("–", "succeeded"), ("SmolLM2 W8A8", "succeeded")], trials
    right = [sum(one["right"] for one in json.loads(row[3])["answers"]) for row in trials]
    assert min(right) > 0, right
    assert "SmolLM2 W8A8" in console.get(f"/studies/{found[1]}/").text
