"""What is asked of a hub before anything is fetched, and every way in which it can refuse."""

import json
import re
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.standin.hub import GOOD_TOKEN, OUTSIDER_TOKEN, Hub, Repository
from tests.weights.hub.conftest import CONFIG, NAME
from workers.weights import hub as hubs
from workers.weights import hub_errors as errors
from workers.weights.hub import Source, SourceKind, config_facts, lookup, revisions, search, whoami


def mirror(hub: Hub) -> Source:
    return Source(SourceKind.MIRROR, hub.url)


def modelscope(hub: Hub) -> Source:
    return Source(SourceKind.MODELSCOPE, hub.url)


def test_a_lookup_pins_the_commit_and_knows_files_licence_and_configuration(hub: Hub, repository: Repository) -> None:
    facts = lookup(mirror(hub), NAME)
    assert facts.commit == repository.commit
    assert facts.license == "apache-2.0"
    assert facts.config.architecture == "LlamaForCausalLM"
    assert facts.config.dtype == "bfloat16"
    assert facts.config.context_length == 8192
    assert facts.config_json == CONFIG
    assert (facts.gated, facts.private, facts.refusal) == (False, False, None)
    by_path = {file.path: file for file in facts.files}
    assert by_path["model-1.safetensors"].sha256 == repository.files["model-1.safetensors"].sha256
    assert by_path["config.json"].git_oid == repository.files["config.json"].git_oid
    assert facts.size == sum(len(item.data) for item in repository.files.values())


def test_a_mirror_without_blob_facts_is_asked_for_its_tree_page_by_page(hub: Hub, repository: Repository) -> None:
    with_blobs = lookup(mirror(hub), NAME)
    hub.faults.no_blob_facts = True
    assert set(lookup(mirror(hub), NAME).files) == set(with_blobs.files)
    pages = [asked for asked in hub.asked if "/tree/" in asked.path]
    assert len(pages) == 3


def test_parameters_come_from_the_hub_from_the_index_or_from_the_one_header(hub: Hub) -> None:
    header = json.dumps({"a": {"dtype": "BF16", "shape": [3, 5], "data_offsets": [0, 30]}, "__metadata__": {}}).encode()
    one = struct.pack("<Q", len(header)) + header + bytes(30)
    index = json.dumps({"metadata": {"total_parameters": 77}}).encode()
    hub.add("makers/told", {"config.json": b"{}"}, parameters={"parameters": {"BF16": 12}, "total": 12})
    hub.add("makers/header", {"config.json": b"{}", "model.safetensors": one})
    hub.add("makers/index", {"config.json": b"{}", "model.safetensors.index.json": index})
    hub.add("makers/broken", {"config.json": b"{}", "model.safetensors": struct.pack("<Q", 1 << 60) + b"x"})
    counts = [lookup(mirror(hub), f"makers/{name}").parameters for name in ("told", "header", "index", "broken")]
    assert counts == [12, 15, 77, None]


def test_a_gate_lists_the_files_and_says_why_they_may_not_be_fetched(hub: Hub) -> None:
    hub.add(NAME, {"config.json": b"{}", "model.safetensors": b"x" * 99}, gated=True)
    outside = lookup(mirror(hub), NAME, token=OUTSIDER_TOKEN)
    assert outside.gated
    assert len(outside.files) == 2
    assert isinstance(outside.refusal, errors.GatedError)
    assert "terms" in outside.refusal.next_step
    assert lookup(mirror(hub), NAME, token=GOOD_TOKEN).refusal is None


Trouble = Callable[[Hub], object]
TROUBLES: list[tuple[type[errors.HubError], Trouble]] = [
    (errors.TokenNeededError, lambda hub: lookup(mirror(hub), "makers/absent")),
    (errors.RepositoryNotFoundError, lambda hub: lookup(mirror(hub), "makers/absent", token=GOOD_TOKEN)),
    (errors.RevisionNotFoundError, lambda hub: lookup(mirror(hub), NAME, "v9")),
    (errors.UnauthorizedError, lambda hub: lookup(mirror(hub), NAME, token="hf_wrong")),
    (errors.UnauthorizedError, lambda hub: whoami(mirror(hub), "hf_wrong")),
    (errors.TokenNeededError, lambda hub: whoami(mirror(hub), "")),
    (errors.InvalidNameError, lambda hub: lookup(mirror(hub), "../../etc/passwd")),
    (errors.InvalidNameError, lambda hub: lookup(mirror(hub), NAME, "../main")),
    (errors.InvalidNameError, lambda hub: lookup(Source(SourceKind.MIRROR, "ftp://x"), NAME)),
    (errors.InvalidNameError, lambda hub: lookup(Source(SourceKind.MIRROR, ""), NAME)),
    (errors.UnreachableError, lambda hub: lookup(Source(SourceKind.MIRROR, "http://127.0.0.1:1"), NAME)),
    (errors.RepositoryNotFoundError, lambda hub: lookup(modelscope(hub), "makers/absent")),
    (errors.RevisionNotFoundError, lambda hub: lookup(modelscope(hub), NAME, "v9")),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "ask"), TROUBLES)
def test_each_refusal_has_its_own_code_and_next_step(
    hub: Hub, repository: Repository, kind: type[errors.HubError], ask: Trouble
) -> None:
    with pytest.raises(errors.HubError) as caught:
        ask(hub)
    assert type(caught.value) is kind
    assert re.fullmatch(r"hub\.[a-z_]+", caught.value.code)
    assert caught.value.message
    assert caught.value.next_step
    assert "hf_wrong" not in str(caught.value)


def test_every_error_has_a_code_of_its_own() -> None:
    kinds = errors.HubError.__subclasses__()
    assert len({kind.code for kind in kinds}) == len(kinds)


def test_a_rate_limit_says_how_long_to_wait(hub: Hub, repository: Repository) -> None:
    for headers, seconds in [({"Retry-After": "17"}, 17), ({"RateLimit": '"api";r=0;t=55'}, 55)]:
        hub.faults.status, hub.faults.statuses, hub.faults.status_headers = 429, 9, headers
        with pytest.raises(errors.RateLimitedError) as caught:
            lookup(mirror(hub), NAME)
        assert caught.value.retry_after == seconds
        assert f"{seconds} s" in caught.value.message


def test_a_login_page_in_between_is_no_answer_of_a_hub(hub: Hub, repository: Repository) -> None:
    hub.faults.not_json = True
    with pytest.raises(errors.BadAnswerError, match="JSON"):
        lookup(mirror(hub), NAME)


def test_a_hub_that_goes_silent_is_unreachable_after_the_timeout(hub: Hub, repository: Repository) -> None:
    hub.faults.down = True
    with pytest.raises(errors.UnreachableError, match=re.escape(hub.url)):
        lookup(mirror(hub), NAME, timeout_seconds=1)


def test_a_hub_that_lists_paths_out_of_the_directory_is_not_believed(hub: Hub) -> None:
    hub.add(NAME, {"../../evil.txt": b"x"})
    with pytest.raises(errors.BadAnswerError, match="impossible name"):
        lookup(mirror(hub), NAME)


def test_a_search_finds_by_part_of_the_name(hub: Hub, repository: Repository) -> None:
    hub.add("makers/other", {"config.json": b"{}"})
    assert [hit.repository for hit in search(mirror(hub), "tiny")] == [NAME]
    assert [hit.repository for hit in search(modelscope(hub), "tiny")] == [NAME]
    assert len(search(mirror(hub), "makers", limit=1)) == 1


def test_revisions_are_branches_then_tags(hub: Hub, repository: Repository) -> None:
    found = revisions(mirror(hub), NAME)
    assert [(item.kind, item.name, item.commit) for item in found] == [
        ("branch", "main", repository.commit),
        ("tag", "v1", repository.commit),
    ]
    assert [item.name for item in revisions(modelscope(hub), NAME)] == ["master", "v1"]


def test_a_token_tells_whose_it_is(hub: Hub) -> None:
    assert whoami(mirror(hub), GOOD_TOKEN) == hubs.Identity("alice", "read")
    assert whoami(modelscope(hub), GOOD_TOKEN).name == "alice"
    with pytest.raises(errors.UnauthorizedError):
        whoami(modelscope(hub), "wrong")


def test_modelscope_gives_every_file_with_its_sha256_at_a_commit(hub: Hub, repository: Repository) -> None:
    facts = lookup(modelscope(hub), NAME)
    assert facts.commit == repository.commit
    assert {file.path: file.sha256 for file in facts.files} == {
        path: item.sha256 for path, item in repository.files.items()
    }
    assert facts.config.architecture == "LlamaForCausalLM"
    assert facts.license == "apache-2.0"


def test_the_token_goes_to_the_endpoint_only(hub: Hub, repository: Repository) -> None:
    hub.faults.cdn = True
    hub.add("makers/one", {"config.json": b"{}", "model.safetensors": struct.pack("<Q", 2) + b"{}"})
    assert lookup(mirror(hub), "makers/one", token=GOOD_TOKEN).parameters == 0
    on_cdn = [asked for asked in hub.asked if asked.on_cdn]
    assert on_cdn
    assert not any("Authorization" in asked.headers or "Cookie" in asked.headers for asked in on_cdn)
    assert all("Authorization" in asked.headers for asked in hub.asked if not asked.on_cdn)


def test_a_password_in_netrc_is_not_sent(
    hub: Hub, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password secret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    lookup(mirror(hub), NAME)
    assert not any("Authorization" in asked.headers for asked in hub.asked)


def test_configurations_of_multimodal_and_quantised_models_are_read() -> None:
    facts = config_facts(
        {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "text_config": {"max_position_embeddings": 131072, "dtype": "bfloat16"},
            "quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized"},
            "auto_map": {"AutoModel": "modeling.X"},
        }
    )
    assert facts.context_length == 131072
    assert facts.dtype == "bfloat16"
    assert facts.quantization == "compressed-tensors (float-quantized)"
    assert facts.needs_remote_code
    assert config_facts({"quantization_config": {"quant_method": "awq", "bits": 4}}).quantization == "awq (4 bit)"
    assert config_facts({}) == hubs.ConfigFacts()
