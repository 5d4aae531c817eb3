"""`slipway verify`: exit codes, one JSON object on stdout, a report that a person can read."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.weights import build
from workers.cli import main

KEYS = ["code", "severity", "file", "message", "fix"]


@pytest.fixture
def model(tmp_path):
    return build.make_model(tmp_path / "model")


def run_json(capsys, *arguments):
    code = main(["verify", *map(str, arguments), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_sound_model_exits_0_with_the_documented_object(capsys, model):
    code, answer = run_json(capsys, model)
    assert code == 0
    assert list(answer) == ["path", "ok", "summary", "findings"]
    assert (answer["path"], answer["ok"], answer["findings"]) == (str(model), True, [])
    assert answer["summary"]["tensors"] == len(build.tensors_of("qwen3"))
    assert answer["summary"]["bytes"] == sum(path.stat().st_size for path in model.iterdir())


def test_warnings_alone_exit_0(capsys, model):
    (model / "chat_template.jinja").unlink()
    code, answer = run_json(capsys, model)
    assert (code, answer["ok"]) == (0, True)
    assert [list(finding) for finding in answer["findings"]] == [KEYS]
    assert answer["findings"][0]["severity"] == "warning"


def test_an_error_exits_1(capsys, model):
    (model / "config.json").unlink()
    code, answer = run_json(capsys, model)
    assert (code, answer["ok"]) == (1, False)


def test_a_path_that_does_not_exist_exits_1(capsys, tmp_path):
    code, answer = run_json(capsys, tmp_path / "nowhere")
    assert code == 1
    assert [finding["code"] for finding in answer["findings"]] == ["path.not_found"]


def test_published_checksums_are_compared(capsys, model, tmp_path):
    build.write_sums(model)
    sums = (model / "SHA256SUMS").rename(tmp_path / "published.txt")
    assert run_json(capsys, model, "--checksums", sums)[0] == 0
    sums.write_text(sums.read_text().replace("model.safetensors", "m").replace("config.json", "model.safetensors"))
    code, answer = run_json(capsys, model, "--checksums", sums)
    assert code == 1
    assert "checksum.mismatch" in {finding["code"] for finding in answer["findings"]}


def test_a_checksum_file_that_is_none_is_a_usage_error_with_an_object(capsys, model):
    code, answer = run_json(capsys, model, "--checksums", model / "none")
    assert (code, answer["ok"]) == (2, False)


def test_usage_errors_exit_2(model):
    with pytest.raises(SystemExit) as stopped:
        main(["verify", str(model), "--no-such-flag"])
    assert stopped.value.code == 2


def test_the_engines_architectures_can_be_given(capsys, model, tmp_path):
    for content in ('["Qwen3ForCausalLM"]', "LlamaForCausalLM\nQwen3ForCausalLM\n"):
        (tmp_path / "list").write_text(content)
        assert run_json(capsys, model, "--architectures", tmp_path / "list")[0] == 0
    (tmp_path / "list").write_text("LlamaForCausalLM")
    code, answer = run_json(capsys, model, "--architectures", tmp_path / "list")
    assert (code, [item["code"] for item in answer["findings"]]) == (1, ["arch.unsupported"])


def test_a_defect_of_ours_still_gives_one_object(capsys, model, monkeypatch):
    def fail(*_arguments, **_options):
        raise RuntimeError("boom")

    monkeypatch.setattr("workers.commands.verify.verify_directory", fail)
    code, answer = run_json(capsys, model)
    assert (code, answer["findings"][0]["code"]) == (1, "verify.internal_error")


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_the_reading_at_once_and_still_gives_one_object(model, ending):
    size = 200 << 30  # of nothing: reading it would take minutes
    header = build.json.dumps({"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    for name in ("model.safetensors", "other.safetensors"):
        (model / name).write_bytes(build.raw_safetensors(header))
        os.truncate(model / name, len(header) + 8 + size)
    command = [sys.executable, "-m", "workers.cli", "verify", str(model), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as verifying:
        deadline = time.monotonic() + 60
        while not _reads(verifying.pid, model):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        verifying.send_signal(ending)
        began = time.monotonic()
        answer, complaint = verifying.communicate(timeout=60)
    assert time.monotonic() - began < 20
    assert (verifying.returncode, complaint) == (130, b"")
    assert [item["code"] for item in json.loads(answer)["findings"]] == ["verify.interrupted"]


def _reads(pid, model):
    with suppress(OSError):
        return any(str(link.readlink()).startswith(str(model)) for link in Path(f"/proc/{pid}/fd").iterdir())
    return False


def test_an_empty_path_is_none(capsys, monkeypatch, model):
    monkeypatch.chdir(model)
    code, answer = run_json(capsys, "")
    assert (code, [item["code"] for item in answer["findings"]]) == (1, ["path.not_found"])


def test_the_report_says_what_and_what_next(capsys, model):
    assert main(["verify", str(model)]) == 0
    assert "nothing stands against a launch" in capsys.readouterr().out
    (model / "config.json").unlink()
    assert main(["verify", str(model), "--fast"]) == 1
    out = capsys.readouterr().out
    assert "config.missing in config.json" in out
    assert "Next:" in out
    assert "1 error to solve" in out


def test_it_starts_without_django_and_heavy_modules(model):
    script = (
        "import sys; from workers.cli import main; code = main(['verify', sys.argv[1], '--values', '--json']); "
        "heavy = {'django', 'numpy', 'torch', 'safetensors', 'pydantic', 'celery', 'socket', 'mmap'} & set(sys.modules); "
        "sys.exit(f'{heavy}' if heavy else code)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(model)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ok"]


def test_fast_reads_the_headers_of_200_shards_in_half_a_second(capsys, tmp_path):
    build.make_sharded(tmp_path, "deepseek-v3", 31)
    tensors = build.tensors_of("deepseek-v3")
    grown = dict(tensors)
    for layer in range(4, 12):
        for name in [name for name in tensors if ".layers.3." in name]:
            grown[name.replace(".layers.3.", f".layers.{layer}.")] = tensors[name]
    for path in tmp_path.glob("*.safetensors"):
        path.unlink()
    build.write_json(tmp_path / "config.json", {**build.config_of("deepseek-v3"), "num_hidden_layers": 12})
    build.write_shards(tmp_path, grown, 200)
    started = time.process_time()
    code, answer = run_json(capsys, tmp_path, "--fast")
    assert (code, answer["summary"]["weight_files"]) == (0, 200)
    assert answer["summary"]["hashed"] is False
    assert time.process_time() - started < 0.5
