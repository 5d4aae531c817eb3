"""Turn a GGUF file into an ordinary Hugging Face directory. Run by an *engine's* Python, never imported by Slipway.

Usage: python convert_gguf.py DIRECTORY_WITH_GGUF GGUF_FILE_NAME OUTPUT_DIRECTORY

The engine's environment has torch and transformers; `gguf` and `accelerate` must have been added to it. The weights are
dequantised to bfloat16 and the quantisation is forgotten, so that any engine can serve the result.
"""

import sys

import torch  # type: ignore[import-not-found]  # only the engine's environment has it
from transformers import AutoModelForCausalLM, AutoTokenizer  # type: ignore[import-not-found]
from transformers.utils.quantization_config import GgufConfig  # type: ignore[import-not-found]


def convert(source: str, gguf_file: str, output: str) -> None:
    """Read `gguf_file` in `source` and write config, weights, tokenizer and chat template to `output`."""
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=gguf_file)
    model = AutoModelForCausalLM.from_pretrained(
        source, gguf_file=gguf_file, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    # The dequantised weights are plain bfloat16; a config that still says "gguf" would make engines look for scales.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    tokenizer.save_pretrained(output)
    model.save_pretrained(output)


if __name__ == "__main__":
    convert(*sys.argv[1:4])
