"""The document on downloads lags behind nothing."""

import pickle
import re
from pathlib import Path

from workers.weights import download_source, hub_errors
from workers.weights.hub_types import SourceKind

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "downloads.md").read_text()


def test_every_answer_of_a_source_is_explained() -> None:
    assert download_source.SilentError in hub_errors.HubError.__subclasses__()
    codes = {kind.code for kind in hub_errors.HubError.__subclasses__()}
    assert codes == set(re.findall(r"^\| `(hub\.\w+)`", TEXT, re.MULTILINE))


def test_every_kind_of_source_is_explained() -> None:
    assert all(f"| `{kind}` |" in TEXT for kind in SourceKind)


def test_an_error_can_be_kept_with_what_it_knows() -> None:
    error = hub_errors.RateLimitedError("too many", retry_after=7)
    kept = pickle.loads(pickle.dumps(error))
    assert (type(kept), kept.message, kept.next_step, kept.retry_after) == (
        hub_errors.RateLimitedError,
        "too many",
        error.advice,
        7,
    )
