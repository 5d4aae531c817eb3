"""Quantises a model directory with llm-compressor; run by the Python of an environment that has it.

Its one argument is a JSON file: model, output, scheme, ignore, prompts, max_tokens. Lines that begin with “slipway: stage”
say how far it is.
"""

import json
import sys
from pathlib import Path
from typing import Any

STAGES = ("the texts to be read", "the weights to be quantised", "the files to be completed")


def main() -> None:
    """Do what the plan says."""
    plan: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    from llmcompressor import oneshot  # type: ignore[import-not-found]  # only its own environment has it

    _stage(1)
    dataset = _dataset(plan) if plan["prompts"] else None
    _stage(2)
    calibration = {"dataset": dataset, "num_calibration_samples": len(dataset)} if dataset is not None else {}
    oneshot(
        model=plan["model"], recipe=_recipe(plan), output_dir=plan["output"], max_seq_length=plan["max_tokens"],
        **calibration,
    )  # fmt: skip
    _stage(3)
    _complete(Path(plan["model"]), Path(plan["output"]))


def _stage(number: int) -> None:
    print(f"slipway: stage {number} of {len(STAGES)}: {STAGES[number - 1]}", flush=True)  # noqa: T201 - read by the step


def _recipe(plan: dict[str, Any]) -> Any:
    settings = {"targets": "Linear", "scheme": plan["scheme"], "ignore": plan["ignore"]}
    if not plan["prompts"]:
        from llmcompressor.modifiers.quantization import QuantizationModifier  # type: ignore[import-not-found]

        return QuantizationModifier(**settings)
    try:
        from llmcompressor.modifiers.gptq import GPTQModifier  # type: ignore[import-not-found]
    except ImportError:  # before 0.10
        from llmcompressor.modifiers.quantization import GPTQModifier
    return GPTQModifier(**settings)


def _dataset(plan: dict[str, Any]) -> Any:
    """The texts as tokens, cut to the length that was asked for."""
    from datasets import Dataset  # type: ignore[import-not-found]
    from transformers import AutoTokenizer  # type: ignore[import-not-found]

    tokenizer = AutoTokenizer.from_pretrained(plan["model"])
    rows = [tokenizer(text, truncation=True, max_length=plan["max_tokens"])["input_ids"] for text in plan["prompts"]]
    rows = [row for row in rows if row]
    return Dataset.from_list([{"input_ids": row, "attention_mask": [1] * len(row)} for row in rows])


def _complete(source: Path, target: Path) -> None:
    """What belongs to the model and is no weight, as it was: licence, generation settings, chat template."""
    for path in source.iterdir():
        wanted = path.suffix in (".json", ".jinja", ".model", ".txt") or path.name.upper().startswith("LICENSE")
        left_out = path.name.endswith(".index.json") or path.name in ("config.json", "slipway.json")
        if path.is_file() and wanted and not left_out and not (target / path.name).exists():
            (target / path.name).write_bytes(path.read_bytes())


if __name__ == "__main__":
    main()
