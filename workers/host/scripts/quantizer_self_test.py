"""Tells which llm-compressor an environment has and what it stands on; run by that environment's own Python.

Prints one line of JSON. It imports the package, so that what can't be imported is found here and not in a night's run.
"""

import json
import platform
from importlib.metadata import PackageNotFoundError, version


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def main() -> None:
    """Print the facts."""
    from llmcompressor import oneshot  # type: ignore[import-not-found]  # noqa: F401 - importing it is the test

    facts: dict[str, object] = {"version": _version("llmcompressor"), "python": platform.python_version(), "gpus": 0}
    for name in ("torch", "transformers", "compressed-tensors"):
        facts[name.replace("-", "_")] = _version(name)
    try:
        import torch  # type: ignore[import-not-found]

        facts["gpus"] = torch.cuda.device_count()
    except ImportError:
        pass
    print(json.dumps(facts))  # noqa: T201 - this line is the result


if __name__ == "__main__":
    main()
