"""Remove quantizer: delete an environment with llm-compressor, or only forget one that was adopted."""

import shutil
from pathlib import Path

from workers.host.engine_environments import engine_lock, remove_tree, words_in_use
from workers.host.failures import StepFailedError
from workers.host.quantizers import DISTRIBUTION, known_quantizer, quantizers_dir
from workers.host.step_context import StepContext
from workers.quantization_payloads import RemoveQuantizerPayload as Payload
from workers.quantization_payloads import RemoveQuantizerResult

__all__ = ["Payload", "run"]


def run(context: StepContext, payload: Payload) -> RemoveQuantizerResult:
    """Return what that freed; quick if it is gone already."""
    config, freed = context.config, 0
    with engine_lock(quantizers_dir(config), DISTRIBUTION, waiting=context.check):
        found = known_quantizer(config, payload.key)
        if found is not None and found.directory:
            programs = str(Path(found.directory) / "bin")
            if any(word.startswith(f"{programs}/") for word in words_in_use(config.state_dir)):
                raise StepFailedError(
                    "quantizer.in_use", f"{payload.key} quantises a model now",
                    next_step="Wait for its job, or cancel it.",
                )  # fmt: skip
            freed = remove_tree(Path(found.directory))
        shutil.rmtree(quantizers_dir(config) / payload.key, ignore_errors=True)
    return RemoveQuantizerResult(key=payload.key, freed_bytes=freed)
