"""Logs in the shapes in which real ones come: what vLLM 0.32 writes around a failure, and what transports add to it."""

START = """\
(APIServer pid=4100) INFO 11-29 14:11:58 [api_utils.py:286] non-default args: {'model': '/models/m', 'port': 8000}
(APIServer pid=4100) WARNING 11-29 14:11:58 [system_utils.py:255] Found ulimit of 20000 and failed to automatically \
increase with error current limit exceeds maximum limit. This can cause fd limit errors like `OSError: [Errno 24] Too many \
open files`. Consider increasing with ulimit -n
(APIServer pid=4100) INFO 11-29 14:11:58 [model.py:733] Resolved architecture: LlamaForCausalLM
(EngineCore pid=4180) INFO 11-29 14:12:05 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='/models/m'
(Worker_TP0 pid=4201) INFO 11-29 14:12:13 [parallel_state.py:1906] world_size=2 rank=0 local_rank=0 backend=nccl
(Worker_TP0 pid=4201) INFO 11-29 14:12:14 [pynccl.py:111] vLLM is using nccl==2.27.5
(Worker_TP0 pid=4201) INFO 11-29 14:12:15 [gpu_model_runner.py:3012] Starting to load model /models/m...
"""
SERVING = """\
(APIServer pid=4100) INFO 11-29 14:13:15 [entry.py:140] Starting vLLM server on http://127.0.0.1:8000
INFO:     Started server process [4100]
INFO:     Waiting for application startup.
INFO:     Application startup complete.
INFO:     127.0.0.1:37206 - "GET /health HTTP/1.1" 200 OK
INFO:     127.0.0.1:37216 - "POST /v1/chat/completions HTTP/1.1" 200 OK
"""
API_END = """\
Traceback (most recent call last):
  File "/engines/vllm/bin/vllm", line 6, in <module>
    sys.exit(main())
             ^^^^^^
  File "/engines/vllm/lib/python3.11/site-packages/vllm/v1/engine/utils.py", line 1431, in wait_for_engine_startup
    raise RuntimeError(
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}
"""
WORKER = "(Worker_TP0 pid=4201) ERROR 11-29 14:12:20 [multiproc_executor.py:953] "
ENGINE = "(EngineCore pid=4180) ERROR 11-29 14:12:23 [core.py:1510] "


def start_failure(message: str) -> str:
    """A start that fails in a worker: its traceback, the engine core's wrapper, the API server's wrapper."""
    worker = [
        "WorkerProc failed to start.",
        "Traceback (most recent call last):",
        '  File "/engines/vllm/lib/python3.11/site-packages/vllm/v1/executor/multiproc_executor.py", line 920, in worker_main',
        "    worker = WorkerProc(*args, **kwargs)",
        "             ^^^^^^^^^^^^^^^^^^^^^^^^^^^",
        *message.splitlines(),
    ]
    engine = [
        "EngineCore failed to start.",
        "Traceback (most recent call last):",
        '  File "/engines/vllm/lib/python3.11/site-packages/vllm/v1/executor/abstract.py", line 815, in wait_for_ready',
        "    raise e from None",
        "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root "
        "cause.",
    ]
    # The real ones have an empty line after each prefixed line of a traceback.
    lines = [f"{WORKER}{line}\n\n" for line in worker] + [f"{ENGINE}{line}\n\n" for line in engine]
    return START + "".join(lines) + "Process EngineCore:\n" + API_END


def api_failure(message: str) -> str:
    """A start that fails in the API server itself, before there is an engine core."""
    head, _, tail = API_END.rpartition("RuntimeError: ")
    assert tail
    return START.partition("(EngineCore")[0] + head + message + "\n"


def death_while_serving(message: str) -> str:
    """An engine that serves, then dies of `message` in its core."""
    engine = ["EngineCore encountered a fatal error.", "Traceback (most recent call last):"]
    engine += ["    engine_core.run_busy_loop()", *message.splitlines()]
    prefix = ENGINE.replace("14:12:23", "14:20:01")
    api = (
        "(APIServer pid=4100) ERROR 11-29 14:20:01 [async_llm.py:906] AsyncLLM output_handler failed.\n"
        "(APIServer pid=4100) ERROR 11-29 14:20:01 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: EngineCore "
        "encountered an issue. See stack trace (above) for the root cause.\n"
        'INFO:     127.0.0.1:37242 - "GET /health HTTP/1.1" 503 Service Unavailable\n'
        "INFO:     Shutting down\nINFO:     Application shutdown complete.\n"
    )
    return START + SERVING + "".join(f"{prefix}{line}\n" for line in engine) + api


def bare(message: str) -> str:
    """Lines that stand in the log as they are: the kernel's, the shell's, NCCL's, the container runtime's."""
    return START + message + "\n"
