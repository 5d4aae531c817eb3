"""Payloads and results of the steps that bring llm-compressor to a host and quantise models with it. Sizes are bytes."""

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from workers.benchmark_payloads import MOST_PROMPTS
from workers.contracts import Message

SchemeName = Literal["FP8_DYNAMIC", "W8A8", "W4A16"]
"""Preset schemes of compressed-tensors, by its own names."""

QUANTIZER_KEY = r"^llmcompressor-[A-Za-z0-9._+-]{1,80}$"


@dataclass(frozen=True)
class SchemeFacts:
    """What a scheme asks for and leaves. `share`: of the size of 16-bit weights, embeddings left as they are.

    `calibrated`: texts make it better (GPTQ, hours on processors); without any, weights are rounded to the nearest.
    """

    calibrated: bool
    share: float
    group_size: int | None = None
    """Columns that share a scale: those of each layer must be a multiple of it."""


SCHEMES: dict[SchemeName, SchemeFacts] = {
    "FP8_DYNAMIC": SchemeFacts(calibrated=False, share=0.6),
    "W8A8": SchemeFacts(calibrated=True, share=0.6),
    "W4A16": SchemeFacts(calibrated=True, share=0.4, group_size=128),
}


class InstallQuantizerPayload(Message):
    """Put llm-compressor into an environment of its own, or with `path` adopt one that lies there."""

    path: str = Field(default="", max_length=400)
    """An environment or its Python; empty: install."""
    version: str = Field(default="", pattern=r"^[0-9A-Za-z.+!_-]{0,64}$")
    """Empty: the newest that the host's package index has."""


class InstallQuantizerResult(Message):
    """What may be run from now on. `details` holds versions of what it stands on, and the GPUs that it sees."""

    key: str
    version: str
    python: str
    adopted: bool = False
    size_bytes: int = 0
    details: dict[str, object] = {}
    seconds: float = 0


class RemoveQuantizerPayload(Message):
    """Delete an environment that was installed; forget one that was adopted."""

    key: str = Field(pattern=QUANTIZER_KEY)


class RemoveQuantizerResult(Message):
    """`freed_bytes` is 0 for an adopted one."""

    key: str
    freed_bytes: int = 0


class QuantizePayload(Message):
    """Make a quantised model directory from one of this host."""

    quantizer: str = Field(pattern=QUANTIZER_KEY)
    model_path: str
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    """Of the directory that is made below the host's models directory."""
    scheme: SchemeName
    ignore: list[str] = ["lm_head"]
    """Layers that stay as they are: names, or patterns that begin with `re:`."""
    device: str = ""
    """Uuid of the GPU to compute on; empty: the processors, which disturbs no engine's memory."""
    prompts: list[str] = Field(default=[], max_length=MOST_PROMPTS)
    """Texts to calibrate with, for the schemes that take some; empty: weights are rounded to the nearest."""
    max_tokens: int = Field(default=2048, ge=16, le=65_536)
    """Longer texts are cut."""


class QuantizeResult(Message):
    """What was made. It is not verified yet."""

    model_path: str
    size_bytes: int
    source_bytes: int
    scheme: SchemeName
    quantizer: str
    prompts: int = 0
    seconds: float = 0
