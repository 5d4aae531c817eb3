"""What a launch's log says about memory, against the real logs that the diagnosis is tested with."""

from pathlib import Path

import pytest

from workers.vllm.launch_log import GIB, read_launch_log

LOGS = Path(__file__).parents[1] / "diagnosis" / "logs"


def test_the_lines_of_a_gpu_start_are_read_and_the_rank_with_least_room_counts() -> None:
    found = read_launch_log(
        "(Worker_TP0 pid=9) INFO 11-29 [gpu_model_runner.py:1] Model loading took 15.02 GiB memory and 3.5 seconds\n"
        "(Worker_TP1 pid=8) INFO 11-29 [gpu_model_runner.py:1] Model loading took 15.04 GiB memory and 3.9 seconds\n"
        "INFO [default_loader.py:1] Loading weights took 3.10 seconds\n"
        "(Worker_TP0 pid=9) INFO Available KV cache memory: 24.50 GiB\n"
        "(Worker_TP1 pid=8) INFO Available KV cache memory: 24.25 GiB\n"
        "INFO GPU KV cache size: 199,872 tokens\n"
        "INFO Maximum concurrency for 8,192 tokens per request: 24.40x\n"
        "INFO Graph capturing finished in 12 secs, took 0.55 GiB\n"
        "INFO init engine (profile, create kv cache, warmup model) took 21.7 s\n"
    )
    assert found.weights_bytes == round(15.04 * GIB)
    assert found.kv_cache_bytes == round(24.25 * GIB)
    assert (found.kv_cache_tokens, found.max_model_len, found.max_concurrency) == (199_872, 8192, 24.4)
    assert (found.load_seconds, found.init_seconds, found.graph_bytes) == (3.1, 21.7, round(0.55 * GIB))


def test_a_log_that_says_nothing_leaves_everything_open() -> None:
    assert read_launch_log("INFO nothing here\n") == read_launch_log("")


@pytest.mark.parametrize("name", ["block16.log", "kill9.log", "fail-no-chat-template.log"])
def test_real_logs_of_a_cpu_tell_their_kv_cache(name: str) -> None:
    found = read_launch_log((LOGS / name).read_text(errors="replace"))
    assert found.kv_cache_tokens
    assert found.kv_cache_bytes
    assert found.load_seconds is not None
