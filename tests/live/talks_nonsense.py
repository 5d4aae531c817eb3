"""Loaded into a real engine by `--tool-parser-plugin`: while a file lies beside this one, every answer is nonsense.

The test copies this module into a folder of its own. Nothing else can make a sound engine lie in the middle of a canary:
what is wrong from the beginning is found by validation, before it gets a request.
"""

from pathlib import Path
from typing import Any

MARK = Path(__file__).with_name("nonsense")


def _patch() -> None:
    from vllm.v1.engine.detokenizer import BaseIncrementalDetokenizer  # type: ignore[import-not-found]

    honest = BaseIncrementalDetokenizer.get_next_output_text

    def lying(self: Any, *arguments: Any, **keywords: Any) -> Any:
        text = honest(self, *arguments, **keywords)
        return "!" * max(1, len(text)) if MARK.exists() else text

    BaseIncrementalDetokenizer.get_next_output_text = lying


if __name__ != "tests.live.talks_nonsense":
    _patch()
