"""The fault table: what is broken, what must follow, and by when. docs/faults.md is made from it.

Each row names a test of this folder, which runs with the stand-in engine and, where `real` says so, once more with a real
vLLM (`make test-all`).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One fault. `notice` is the longest time until it is told, in words; `test` the name of its test."""

    fault: str
    final: str
    notice: str
    cause: str
    test: str
    real: bool = True


DEATH = "2 s"
HANG = "`hang_seconds`"
NEVER = "–"

ROWS = (
    Row("API server: kill -9", "ready, next attempt", DEATH, "signal SIGKILL", "test_kill_9_of_the_api_server"),
    Row("EngineCore: kill -9", "ready, next attempt", DEATH, "EngineCore has ended", "test_kill_9_of_the_engine_core"),
    Row("Worker: kill -9", "ready, next attempt", DEATH, "Worker has ended", "test_kill_9_of_a_worker"),
    Row("API server: kill -STOP", "ready, next attempt", HANG, "`engine.hung`: no answer of `/health`; the API server is "
        "stopped by a signal", "test_stop_of_the_api_server"),
    Row("EngineCore: kill -STOP", "ready, next attempt", HANG, "`engine.hung`: no token; EngineCore is stopped by a signal",
        "test_stop_of_the_engine_core"),
    Row("Worker: kill -STOP", "ready, next attempt", HANG, "`engine.hung`: no token; Worker is stopped by a signal",
        "test_stop_of_a_worker"),
    Row("agent: kill -9", "ready, same process; the next agent adopts it", "15 s (the host is silent)",
        "host offline, instance unknown", "test_kill_9_of_the_agent"),
    Row("agent: kill -STOP", "ready, same process", "15 s (the host is silent)", "host offline, instance unknown",
        "test_stop_of_the_agent"),
    Row("shim: kill -9", "ready, same process; the next shim takes over", DEATH, "in the agent's log",
        "test_kill_9_of_the_shim"),
    Row("shim: kill -STOP", "ready; a crash meanwhile is answered when it goes on", NEVER, NEVER, "test_stop_of_the_shim"),
    Row("shim and engine: kill -9 together", "ready, next attempt", DEATH, "in the agent's log",
        "test_kill_9_of_shim_and_engine_together"),
    Row("broker: kill -9", "ready; a crash meanwhile is answered without it and told later, in order", "5 s (heartbeat)",
        "host offline", "test_kill_9_of_the_broker"),
    Row("broker: kill -STOP", "ready; reports wait and come in order", "5 s (heartbeat)", "host offline",
        "test_stop_of_the_broker"),
    Row("web, worker, ingest: kill -9", "started again; nothing is lost or doubled", "1 s", "in the console's log",
        "test_kill_9_of_each_console_process"),
    Row("web, ingest: kill -STOP", "web is started again after half a minute; reports wait for ingest", "30 s",
        "in the console's log", "test_stop_of_web_and_ingest"),
    Row("database: restarted (PostgreSQL)", "pages and ingest go on; engines serve throughout", "5 s",
        "in the console's log", "test_restart_of_the_database", real=False),
    Row("disk of the host full", "ready, same process; what was to be told is told once there is room", NEVER,
        "in the agent's log", "test_a_full_disk"),
    Row("port stolen while the engine restarts", "crashed", DEATH, "`port.in_use`", "test_a_stolen_port"),
    Row("model file removed while serving, then a crash", "unhealthy or crashed, never ready", DEATH,
        "what the engine says, and the files that are missing", "test_a_file_removed_while_serving"),
    Row("network between host and console cut", "ready; a crash meanwhile is answered and told later, in order",
        "15 s (the host is silent)", "host offline", "test_a_cut_network"),
    Row("clock of the host jumps by a day", "ready, same process; budget and pauses are not changed by it", NEVER,
        "clock skew on the host's page", "test_a_clock_that_jumps"),
    Row("ten crashes in a row", "crashed", DEATH, "the budget is spent, with the cause of the last one",
        "test_ten_crashes_in_a_row"),
    Row("host restarted", "ready, next attempt, without the console", "at the agent's start", "the host was restarted",
        "test_a_restart_of_the_host"),
)  # fmt: skip


def document() -> str:
    """docs/faults.md."""
    head = (
        "# Faults\n\n"
        "What is broken, what it must end in, by when it is told, and what names the cause. Each row is a test in "
        "`tests/faults/`; a\ntest compares this page with them (`python -m tests.faults.table` writes it). In each of "
        "them nothing is lost or doubled: reports come\nin order, each attempt is told once, and no process is left that "
        "belongs to no living attempt.\n\n"
        "| Fault | Ends in | Told within | Cause |\n|---|---|---|---|\n"
    )
    rows = "".join(f"| {row.fault} | {row.final} | {row.notice} | {row.cause} |\n" for row in ROWS)
    real = sum(row.real for row in ROWS)
    return f"{head}{rows}\nWith a real vLLM (`make test-all`): {real} of {len(ROWS)} rows; the others need no engine.\n"


if __name__ == "__main__":
    from pathlib import Path

    Path(__file__).resolve().parents[2].joinpath("docs/faults.md").write_text(document(), encoding="utf-8")
