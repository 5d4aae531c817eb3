"""Run by a real engine's own Python: fill directories that hold a config.json with random weights of that configuration.

Arguments: model directories. Weights are saved as transformers saves a trained model's, in bfloat16.
"""

import sys


def main() -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    for directory in sys.argv[1:]:
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory), dtype=torch.bfloat16)
        model.save_pretrained(directory)


if __name__ == "__main__":
    main()
