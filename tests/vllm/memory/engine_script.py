"""Run by a real engine's own Python: load a model with dummy weights and print what its KV cache and weights became.

Arguments: model directory, JSON of `LLM` keywords. Prints one line `RESULT {...}`; the engine's log goes to stderr.
"""

import json
import sys


def parameter_bytes(worker) -> int:
    return sum(each.numel() * each.element_size() for each in worker.model_runner.model.parameters())


def main() -> None:
    from vllm import LLM

    llm = LLM(sys.argv[1], load_format="dummy", skip_tokenizer_init=True, enforce_eager=True, **json.loads(sys.argv[2]))
    cache = llm.llm_engine.vllm_config.cache_config
    result = {
        "num_blocks": cache.num_gpu_blocks,
        "block_size": cache.block_size,
        "weights_bytes": max(llm.collective_rpc(parameter_bytes)),
    }
    print("RESULT", json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
