"""`slipway args check` as a program: one JSON object, exit codes, ports and model directories."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from workers.cli import main


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main(["args", "check", "--json", *words])
    output = capsys.readouterr().out
    assert output.count("\n") == 1
    answer: dict[str, Any] = json.loads(output)
    assert list(answer) == ["ok", "engine_version", "findings", "argv"]
    return code, answer


def codes(answer: dict[str, Any]) -> list[str]:
    return [finding["code"] for finding in answer["findings"]]


def test_a_line_that_holds_exits_0(capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = run(capsys, "--engine-version", "0.32.0", "--", "M", "--max-model-len", "32k", "-tp", "2")
    assert code == 0
    assert answer == {
        "ok": True,
        "engine_version": "0.32.0",
        "findings": [],
        "argv": ["M", "--max-model-len", "32000", "--tensor-parallel-size", "2"],
    }


def test_an_error_exits_1_and_a_warning_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--engine-version", "0.32.0", "--", "M", "--swap-space", "4")[0] == 1
    code, answer = run(capsys, "--engine-version", "0.32.0", "--", "M", "--seed", "1", "--seed", "1")
    assert (code, answer["ok"], codes(answer)) == (0, True, ["args.duplicate"])


def test_a_whole_command_may_be_given_as_words_or_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["vllm", "serve", "M", "--seed", "1"], ["A=1 vllm serve M --seed 1"]):
        code, answer = run(capsys, "--engine-version", "0.16.0", "--", *words)
        assert (code, answer["argv"]) == (0, ["M", "--seed", "1"])


def test_no_words_at_all_are_fine(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--engine-version", "0.32.0", "--") == (
        0,
        {"ok": True, "engine_version": "0.32.0", "findings": [], "argv": []},
    )


@pytest.mark.parametrize("options", [[], ["--engine-version", "newest"], ["--schema", "/no/such/file"]])
def test_wrong_use_exits_2_and_still_prints_json(capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
    code, answer = run(capsys, *options, "--", "M")
    assert code == 2
    assert answer["ok"] is False


def test_unknown_options_of_the_command_exit_2() -> None:
    with pytest.raises(SystemExit) as left:
        main(["args", "check", "--engine-version", "0.32.0", "--bogus", "--", "M"])
    assert left.value.code == 2


def test_a_schema_file_is_used_instead_of_the_shipped_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "schema.json"
    arguments = [{"dest": "own", "flags": ["--own"], "kind": "_StoreAction", "type": "int"}]
    file.write_text(json.dumps({"vllm": "0.32.0+own", "args": arguments}), encoding="utf-8")
    code, answer = run(capsys, "--schema", str(file), "--", "M", "--own", "3")
    assert (code, answer["engine_version"], answer["argv"]) == (0, "0.32.0+own", ["M", "--own", "3"])
    assert run(capsys, "--engine-version", "0.32.0", "--schema", str(file), "--", "M")[1]["findings"] == []
    code, answer = run(capsys, "--engine-version", "0.16.0", "--schema", str(file), "--", "M", "--seed", "3")
    assert (code, codes(answer)) == (1, ["schema.other_version", "args.removed"])
    assert answer["engine_version"] == "0.16.0"


def test_a_taken_port_is_found_and_a_free_one_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = str(listener.getsockname()[1])
        code, answer = run(capsys, "--engine-version", "0.32.0", "--", "M", "--port", port)
        assert code == 1
        assert "port.in_use" in codes(answer)
    code, answer = run(capsys, "--engine-version", "0.32.0", "--", "M", "--port", port)
    assert code == 0
    assert "port.in_use" not in codes(answer)


def test_the_default_port_is_looked_at_when_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.commands.args.port_taken", lambda port: port == 8000)
    assert run(capsys, "--engine-version", "0.32.0", "--", "M")[0] == 0
    code, answer = run(capsys, "--engine-version", "0.32.0", "--port-check", "--", "M")
    assert (code, codes(answer)) == (1, ["port.in_use"])


def test_the_model_is_read_for_context_and_heads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"num_attention_heads": 4, "max_position_embeddings": 4096}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    words = ["--max-model-len", "8k", "-tp", "3"]
    expected = ["context.exceeds_model", "parallelism.heads_not_divisible"]
    given = ["--engine-version", "0.32.0", "--model", str(tmp_path), "--"]
    assert codes(run(capsys, *given, *words)[1]) == expected
    assert codes(run(capsys, "--engine-version", "0.32.0", "--", str(tmp_path), *words)[1]) == expected
    assert codes(run(capsys, "--engine-version", "0.32.0", "--", "vllm", "serve", str(tmp_path), *words)[1]) == expected
    code, answer = run(capsys, "--engine-version", "0.32.0", "--model", str(tmp_path / "no"), "--", "M")
    assert (code, codes(answer)) == (1, ["path.not_found"])


def test_a_config_file_is_read_as_vllm_reads_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(
        "seed: 3\nenforce_eager: true\nenable-chunked-prefill: false\nserved-model-name: [a, b]\n"
        "speculative-config:\n  model: d\n  num_speculative_tokens: 2\nswap-space: 4\nmax-model-len: 1024\n",
        encoding="utf-8",
    )
    code, answer = run(
        capsys, "--engine-version", "0.32.0", "--", "M", "--config", str(file), "--max-model-len", "2048"
    )
    assert (code, codes(answer)) == (1, ["args.removed"])
    assert answer["argv"][:8] == ["M", "--seed", "3", "--enforce-eager", "--no-enable-chunked-prefill",
                                  "--served-model-name", "a", "b"]  # fmt: skip
    assert answer["argv"][-4:] == ["--max-model-len", "2048", "--kv-offloading-size", "4"]


def test_a_config_file_that_cannot_be_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.yaml").write_text("- 1", encoding="utf-8")
    for path in (tmp_path / "bad.yaml", tmp_path / "none.yml"):
        code, answer = run(capsys, "--engine-version", "0.32.0", "--", "M", "--config", str(path))
        assert (code, codes(answer)) == (0, ["args.config_unread"])
    assert codes(run(capsys, "--engine-version", "0.32.0", "--", "M", "--config", "x.json")[1]) == [
        "args.invalid_value"
    ]


def test_people_get_sentences_and_the_corrected_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["args", "check", "--engine-version", "0.32.0", "--", "M", "--model-name", "my chat"]) == 1
    output = capsys.readouterr().out
    assert "--served-model-name" in output
    assert "vllm serve M --served-model-name 'my chat'" in output
    assert main(["args", "check", "--engine-version", "0.32.0", "--", "M"]) == 0
    assert "All arguments hold" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("version", "lies"),
    [("0.6.3", "before 0.8.5"), ("0.18.0", "between 0.16.0 and 0.20.2"), ("1.0", "beyond 0.32.0")],
)
def test_a_version_that_was_not_looked_at_is_placed_among_the_known_ones(
    capsys: pytest.CaptureFixture[str], version: str, lies: str
) -> None:
    code, answer = run(capsys, "--engine-version", version, "--", "M")
    assert (code, codes(answer)) == (0, ["schema.interpolated"])
    assert f"it lies {lies}" in answer["findings"][0]["message"]


def test_a_json_nested_too_deep_is_a_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    deep = tmp_path / "config.json"
    deep.write_text("[" * 100_000)
    code, answer = run(capsys, "--engine-version", "0.32.0", "--model", str(tmp_path), "--", "M")
    assert (code, codes(answer)) == (1, ["config.invalid_json"])
    code, answer = run(capsys, "--engine-version", "0.32.0", "--schema", str(deep), "--", "M")
    assert (code, codes(answer)) == (2, ["usage"])


def test_the_model_may_be_named_by_its_config_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"max_position_embeddings": 2048}))
    words = ("--engine-version", "0.32.0", "--model", str(config), "--", "M", "--max-model-len", "4096")
    assert codes(run(capsys, *words)[1]) == ["context.exceeds_model"]
