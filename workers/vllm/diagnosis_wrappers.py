"""What a log says around a cause: what follows from it, what only repeats it, and who died of it."""

import re

# A cause, and the codes that it drags behind it: one exception chain often ends in the words of another cause.
CONSEQUENCES: dict[str, frozenset[str]] = {
    "hub.gated": frozenset({"hub.unauthorized", "path.not_found", "hub.unreachable"}),
    "hub.unauthorized": frozenset({"path.not_found", "hub.unreachable"}),
    "hub.rate_limited": frozenset({"hub.unreachable", "hub.offline_uncached"}),
    "hub.offline_uncached": frozenset({"hub.unreachable", "path.not_found"}),
    "hub.unreachable": frozenset({"hub.offline_uncached", "path.not_found"}),
    "shm.exhausted": frozenset({"nccl.init_failed", "disk.full"}),
    "memory.out_of_memory": frozenset({"nccl.init_failed"}),
    "kv_cache.no_blocks": frozenset({"kv_cache.too_small"}),
    "path.not_found": frozenset({"config.missing", "hub.unreachable"}),
    "driver.mismatch": frozenset({"gpu.lost"}),
    "driver.too_old": frozenset({"gpu.lost", "driver.mismatch"}),
}

# These say that something failed, or repeat it; the cause stands elsewhere.
WRAPPERS = re.compile(
    r"Engine core initialization failed|WorkerProc initialization failed|Engine process failed to start"
    r"|[Ss]ee (?:root cause|stack trace)|check the stack trace|EngineCore (?:encountered|failed|hit an exception)"
    r"|Engine(?:Dead|Generate)Error"
    r"|AsyncEngineDeadError|Background loop (?:has errored|is stopped)|output_handler failed|Executor failed"
    r"|WorkerProc (?:failed|hit an exception|initialization)|Worker failed with error|\d+ validation errors? for"
    r"|KeyboardInterrupt|SystemExit|CancelledError|ChildFailedError|ProcessExitedException|MQEngineDeadError"
    r"|BrokenPipeError|ConnectionResetError|multiprocessing\.managers\.RemoteError|leaked \w+ objects"
    r"|Exception in (?:thread|worker|callback)|During handling of the above|Uncaught exception in|Exception ignored in"
)

# A process of the engine is gone: true of most failures, so the last thing to blame.
DEATHS = re.compile(
    r"(?:Worker proc|RayWorkerProc|Worker VllmWorkerProcess|Engine ?[Cc]ore|Engine core proc|VLLM::)\S* ?.{0,40}\bdied\b"
    r"|\bdied unexpectedly|Engine process .{0,20}\bdied\b|A worker died or was killed|worker process has died|SIGSEGV received"
    r"|^Aborted\b|Segmentation fault|Segfault encountered|Fatal Python error|\(core dumped\)|terminate called after"
)
# The announcement of a death, whose cause follows it in the traceback; or its echo in another process.
DEATH_NOTICES = re.compile(r"EngineCore encountered a fatal error|EngineDeadError|MQLLMEngine is already dead")

# What an exception looks like at the end of a traceback; pydantic's own are indented.
EXCEPTION = re.compile(
    r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Failure|Exit|Interrupt)\w*(?:\(\w+\))?(?::\s|$)"
    r"|(?:\w+\.)+\w*error(?::\s|$)|\s{2}(?:Value|Assertion) error, |Fatal Python error: |thread '.{0,60}' panicked at"
)
