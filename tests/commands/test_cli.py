"""The frame of the `slipway` command: usage errors, and how little it imports."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from workers.cli import COMMANDS, main


@pytest.mark.parametrize(
    "arguments", [["verify"], ["verify", "a", "b"], ["plan", ".", "--tensor-parallel-size", "x"], ["nonsense"], []]
)
def test_a_usage_error_exits_with_2_and_with_json_is_still_one_object(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main([*arguments, "--json"])
    assert left.value.code == 2
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is False
    assert answer["findings"][0]["code"] == "usage"


def test_without_json_a_usage_error_leaves_stdout_empty(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["verify"])
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("command", ["verify", "plan", "args", "diagnose"])
def test_offline_tools_need_no_django_no_celery_no_redis_and_no_torch(command: str) -> None:
    code = (
        f"import sys, importlib; importlib.import_module({COMMANDS[command][0]!r});"
        "print([name for name in ('django', 'celery', 'redis', 'torch', 'numpy', 'pydantic') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_a_reader_that_has_read_enough_gets_no_traceback(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("ValueError: nothing\n" * 3)
    command = subprocess.Popen(
        [sys.executable, "-m", "workers.cli", "diagnose", str(log), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert command.stdout
    assert command.stderr
    command.stdout.close()
    errors = command.stderr.read()
    command.stderr.close()
    assert command.wait(60) == 141
    assert errors == b""


def test_an_interrupted_command_still_answers_with_one_object(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("workers.commands.args.check_words", interrupted)
    assert main(["args", "check", "--engine-version", "0.32.0", "--json", "--", "M"]) == 130
    answer = json.loads(capsys.readouterr().out)
    assert (answer["ok"], answer["findings"][0]["code"], answer["argv"]) == (False, "interrupted", [])


def test_a_full_disk_behind_the_output_is_said_without_a_traceback() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "workers.cli", "args", "check", "--engine-version", "0.32.0", "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == b"slipway: there is no space left for the output. Free some, and run it again.\n"
