import io
import json
import sys
from pathlib import Path

import pytest

from workers.cli import main

LOGS = Path(__file__).parent / "logs"


def test_json_is_one_object_with_the_documented_keys(capsys):
    assert main(["diagnose", str(LOGS / "fail-kv-too-small.log"), "--exit-code", "1", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert list(output) == ["code", "title", "message", "evidence", "confidence", "fix", "links", "also"]
    assert output["code"] == "kv_cache.too_small"
    assert output["evidence"][0]["line"] == 106
    assert 0 <= output["confidence"] <= 1


@pytest.mark.parametrize(("exit_code", "code"), [("0", "engine.died"), ("137", "process.killed_by_oom")])
def test_the_exit_code_counts(capsys, exit_code, code):
    assert main(["diagnose", str(LOGS / "kill9.log"), "--exit-code", exit_code, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["code"] == code


def test_a_negative_exit_code_is_a_signal(capsys):
    assert main(["diagnose", str(LOGS / "fail-sharded-ok.log"), "--exit-code", "-9", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["code"] == "process.killed_by_oom"


def test_a_healthy_log_is_a_result_too(capsys):
    assert main(["diagnose", str(LOGS / "fail-sharded-ok.log"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["code"] == "healthy"


def test_people_get_sentences_with_line_numbers(capsys):
    assert main(["diagnose", str(LOGS / "fail-kv-too-small.log")]) == 0
    output = capsys.readouterr().out
    assert output.startswith("The KV cache can't hold one full request")
    assert "    106  (EngineCore" in output
    assert "What to do:" in output


def test_standard_input_is_read(capsys, monkeypatch):
    class Input:
        buffer = io.BytesIO((LOGS / "fail-truncated.log").read_bytes())

    monkeypatch.setattr(sys, "stdin", Input())
    assert main(["diagnose", "-", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["code"] == "weights.truncated"


@pytest.mark.parametrize("name", ["nope.log", "."])
def test_a_log_that_cannot_be_read_is_exit_code_2_and_still_one_object(capsys, tmp_path, name):
    assert main(["diagnose", str(tmp_path / name), "--json"]) == 2
    assert set(json.loads(capsys.readouterr().out)) == {"error"}
    assert main(["diagnose", str(tmp_path / name)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "can't read" in captured.err


def test_a_wrong_command_line_is_exit_code_2():
    with pytest.raises(SystemExit) as error:
        main(["diagnose", "x.log", "--exit-code", "many"])
    assert error.value.code == 2
