"""Answer one question with transformers alone, on the CPU. Run by an *engine's* Python, never imported by Slipway.

Usage: python control_answer.py MODEL_DIRECTORY chat|completions MAX_TOKENS QUESTION

Nothing of the engine is used: the same files, another implementation. If this answer is fine, the files are. The last line of
the output is a JSON object: text, tokens, missing (names of weights that the files lack).
"""

import json
import sys

import torch  # type: ignore[import-not-found]  # only the engine's environment has it
from transformers import AutoModelForCausalLM, AutoTokenizer  # type: ignore[import-not-found]


def answer(directory: str, mode: str, max_tokens: int, question: str) -> dict[str, object]:
    """Load the model, ask at temperature 0, return what it says and which weights it did not find."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model, report = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.bfloat16, output_loading_info=True, local_files_only=True
    )
    model.eval()
    if mode == "chat":
        messages = [{"role": "user", "content": question}]
        inputs = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
    else:
        inputs = tokenizer(question, return_tensors="pt")
    with torch.no_grad():
        made = model.generate(**inputs, max_new_tokens=max_tokens, do_sample=False)
    new = made[0][inputs["input_ids"].shape[1] :]
    text = tokenizer.decode(new, skip_special_tokens=True)
    return {"text": text, "tokens": len(new), "missing": sorted(report["missing_keys"])[:20]}


if __name__ == "__main__":
    print(json.dumps(answer(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])))  # noqa: T201
