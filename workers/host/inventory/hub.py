"""Does the model hub answer from here? Asked through the machine's own proxy settings, once in a while, briefly."""

import time
from collections.abc import Mapping

import httpx2

from workers.host_facts import Hub
from workers.weights.hub_http import new_client

DEFAULT_ENDPOINT = "https://huggingface.co"
_SECONDS = 6.0
_OFFLINE = ("1", "on", "yes", "true")


def ask_hub(environ: Mapping[str, str]) -> Hub:
    """Whether `HF_ENDPOINT` (else huggingface.co) answers; not asked at all where `HF_HUB_OFFLINE` says so."""
    endpoint = (environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")
    if environ.get("HF_HUB_OFFLINE", "").lower() in _OFFLINE:
        return Hub(endpoint=endpoint, problem="not asked: HF_HUB_OFFLINE is set for the agent")
    began = time.monotonic()
    try:
        with new_client(connect_seconds=_SECONDS, read_seconds=_SECONDS, connections=1) as client:
            status = client.head(endpoint).status_code
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
        return Hub(endpoint=endpoint, reachable=False, problem=(str(error) or type(error).__name__)[:300])
    took = round((time.monotonic() - began) * 1000, 1)
    if status >= 500:
        return Hub(endpoint=endpoint, reachable=False, problem=f"it answers HTTP {status}", milliseconds=took)
    return Hub(endpoint=endpoint, reachable=True, milliseconds=took)
