"""NVML as it answered once: recordings of its calls, replayed to the reader through pynvml's own names and errors."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml

FOLDER = Path(__file__).parent


def smi(name: str) -> str:
    """What nvidia-smi wrote."""
    return (FOLDER / "smi" / name).read_text()


class Recording:
    """Stands in for the module `pynvml`. A question that was not recorded is refused as NVML refuses it: not supported."""

    NVMLError = pynvml.NVMLError

    def __init__(self, name: str) -> None:
        self._said = json.loads((FOLDER / "nvml" / name).read_text())
        self.open = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("nvmlDevice"):
            return lambda handle, *arguments, **named: self._answer(handle, name, arguments)
        return getattr(pynvml, name)

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's name
        if code := self._said.get("init"):
            raise pynvml.NVMLError(code)
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self._said["devices"])

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:  # noqa: N802
        return _answered(self._said["devices"][index], keep=True)

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return str(self._said["driver"])

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:  # noqa: N802
        return int(self._said["cuda"])

    def _answer(self, handle: dict[str, Any], name: str, arguments: tuple[Any, ...]) -> Any:
        question = name.removeprefix("nvmlDevice").removeprefix("Get")
        answer = handle.get(question)
        if arguments and isinstance(answer, dict) and not {"error", "total"} & set(answer):
            answer = answer.get(",".join(str(argument) for argument in arguments))
        if answer is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return _answered(answer, keep=question == "MigDeviceHandleByIndex")


def _answered(answer: Any, *, keep: bool) -> Any:
    if isinstance(answer, dict) and "error" in answer:
        raise pynvml.NVMLError(answer["error"])
    if isinstance(answer, dict) and not keep:
        return SimpleNamespace(**answer)
    if isinstance(answer, list) and answer and isinstance(answer[0], dict):
        return [SimpleNamespace(**one) for one in answer]
    return answer
