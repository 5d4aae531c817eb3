"""Which files of a repository an engine needs: a default with a reason for each file, for a person to edit."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from workers.weights.hub_types import HubFile

_OTHER_FORMATS = {
    ".gguf": "GGUF",
    ".ggml": "GGML",
    ".onnx": "ONNX",
    ".onnx_data": "ONNX",
    ".h5": "TensorFlow",
    ".msgpack": "Flax",
    ".tflite": "TensorFlow Lite",
    ".ot": "Rust",
    ".mlmodel": "Core ML",
    ".mlpackage": "Core ML",
    ".nemo": "NeMo",
    ".llamafile": "llamafile",
    ".pb": "TensorFlow",
    ".engine": "TensorRT",
    ".mlir": "MLIR",
}
_PICKLE = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
_OTHER_FOLDERS = {
    "original": "the weights in their makers' own layout",
    "onnx": "ONNX",
    "openvino": "OpenVINO",
    "coreml": "Core ML",
    "metal": "Metal",
    "runs": "training logs",
    ".git": "git's own files",
}
_MEDIA = (
    ".png",
    ".jpg",
    ".jpeg",
    ".gif",
    ".webp",
    ".svg",
    ".mp4",
    ".mov",
    ".mp3",
    ".wav",
    ".pdf",
    ".ipynb",
    ".zip",
    ".gz",
)
_TRAINING = ("optimizer.", "scheduler.", "rng_state", "training_args.", "trainer_state.")
_ALWAYS = (
    "config.json",
    "generation_config.json",
    "params.json",
    "tekken.json",
    "merges.txt",
    "vocab.txt",
    "vocab.json",
)


@dataclass(frozen=True, slots=True)
class Choice:
    """One file, whether it is chosen, and why."""

    file: HubFile
    chosen: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Selection:
    """All files of a revision in the order of their names."""

    choices: tuple[Choice, ...]

    @property
    def files(self) -> tuple[HubFile, ...]:
        """The chosen ones."""
        return tuple(choice.file for choice in self.choices if choice.chosen)

    @property
    def size(self) -> int:
        """Bytes of the chosen ones."""
        return sum(file.size for file in self.files)

    def with_paths(self, paths: Iterable[str]) -> "Selection":
        """The selection with exactly `paths` chosen: what a person made of it. Unknown paths are ignored."""
        wanted = set(paths)
        choices = []
        for choice in self.choices:
            chosen = choice.file.path in wanted
            reason = choice.reason if chosen == choice.chosen else "chosen by hand" if chosen else "left out by hand"
            choices.append(Choice(choice.file, chosen, reason))
        return Selection(tuple(choices))


def select_files(files: Iterable[HubFile]) -> Selection:
    """Choose what vLLM loads: safetensors before pickle, configuration and tokenizer always, no other formats.

    A repository with nothing but GGUF or pickle weights keeps those, because otherwise there would be no weights.
    """
    listed = sorted(files, key=lambda file: file.path)
    names = [file.path for file in listed]
    formats = _Formats(
        safetensors=any(_is_loadable_safetensors(name) for name in names),
        pickle=any(_is_pickle_weight(name) for name in names),
        consolidated_only=not any(_is_loadable_safetensors(name) for name in names)
        and any(_is_consolidated(name) and name.endswith(".safetensors") for name in names),
    )
    return Selection(tuple(Choice(file, *_judge(file.path, formats)) for file in listed))


@dataclass(frozen=True, slots=True)
class _Formats:
    safetensors: bool
    pickle: bool
    consolidated_only: bool


def _judge(name: str, formats: _Formats) -> tuple[bool, str]:
    path = PurePosixPath(name)
    base, ending = path.name.lower(), path.suffix.lower()
    if base in _ALWAYS and len(path.parts) == 1:
        return True, "configuration or tokenizer"
    if folder := next((part for part in path.parts[:-1] if part.lower() in _OTHER_FOLDERS), None):
        return False, f"in {folder}/: {_OTHER_FOLDERS[folder.lower()]}"
    if base.startswith("openvino"):
        return False, "another format: OpenVINO"
    if base.startswith(_TRAINING):
        return False, "state of the training"
    if _is_consolidated(name):
        return _judge_consolidated(ending, formats)
    if ending in _OTHER_FORMATS:
        alone = ending == ".gguf" and not (formats.safetensors or formats.pickle or formats.consolidated_only)
        return (True, "the only weights are GGUF") if alone else (False, f"another format: {_OTHER_FORMATS[ending]}")
    if ending == ".safetensors" or base.endswith(".safetensors.index.json"):
        return True, "weights (safetensors)"
    if ending in _PICKLE or base.endswith(".bin.index.json"):
        return _judge_pickle(formats)
    if ending in _MEDIA or base in (".gitattributes", ".gitignore"):
        return False, "not used by an engine"
    return True, "small file that an engine may read"


def _judge_consolidated(ending: str, formats: _Formats) -> tuple[bool, str]:
    if formats.consolidated_only and ending in (".safetensors", ".json"):
        return True, "the only weights are consolidated ones"
    return False, "the same weights once more, in one piece"


def _judge_pickle(formats: _Formats) -> tuple[bool, str]:
    if formats.safetensors or formats.consolidated_only:
        return False, "pickle: the same weights are there as safetensors, which can't run code"
    return True, "weights (pickle: loading them runs code; an admin must allow it)"


def _is_consolidated(name: str) -> bool:
    return PurePosixPath(name).name.lower().startswith("consolidated")


def _is_loadable_safetensors(name: str) -> bool:
    return name.endswith(".safetensors") and not _is_consolidated(name) and not _in_other_folder(name)


def _is_pickle_weight(name: str) -> bool:
    return name.lower().endswith(_PICKLE) and not _is_consolidated(name) and not _in_other_folder(name)


def _in_other_folder(name: str) -> bool:
    return any(part.lower() in _OTHER_FOLDERS for part in PurePosixPath(name).parts[:-1])
