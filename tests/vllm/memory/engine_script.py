"""Run by a real engine's own Python: load models one after the other, and print what their KV caches and weights became.

Argument: a JSON file with a list of launches, each with `case`, `model` (a directory) and `keywords` of `LLM`. Prints a line
`BEGIN case`, the engine's own log, and `RESULT {...}` or `FAILED …` for each. One process for all, with the engine's core in
it (VLLM_ENABLE_V1_MULTIPROCESSING=0): importing the engine takes longer than loading a small model.
"""

import gc
import json
import os
import sys
from pathlib import Path


def parameter_bytes(worker) -> int:
    # By the memory behind them: latent attention has two parameters that are views of a third one.
    found = {each.untyped_storage().data_ptr(): each for each in worker.model_runner.model.parameters()}
    return sum(each.untyped_storage().nbytes() for each in found.values())


def launch(model: str, keywords: dict) -> dict:
    from vllm import LLM

    llm = LLM(model, skip_tokenizer_init=True, enforce_eager=True, **keywords)
    cache = llm.llm_engine.vllm_config.cache_config
    result = {
        "num_blocks": cache.num_gpu_blocks,
        "block_size": cache.block_size,
        "weights_bytes": max(llm.collective_rpc(parameter_bytes)),
    }
    llm.llm_engine.engine_core.shutdown()
    return result


def main() -> None:
    from vllm import logger
    from vllm.distributed import cleanup_dist_env_and_memory

    for each in json.loads(Path(sys.argv[1]).read_text()):
        print("BEGIN", each["case"], flush=True)
        logger._print_info_once.cache_clear()  # a pool as large as the one before would go unlogged
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "0|1" if each["keywords"].get("tensor_parallel_size") == 2 else "auto"
        try:
            print("RESULT", json.dumps(launch(each["model"], each["keywords"])), flush=True)
        except Exception as error:  # the next launch has nothing to do with it
            print("FAILED", type(error).__name__, error, flush=True)
        gc.collect()
        cleanup_dist_env_and_memory()


if __name__ == "__main__":
    main()
