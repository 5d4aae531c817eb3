"""Secrets in what leaves the host as text: log lines and reports. Each is replaced by as many stars as it had characters.

The length stays, because a log's cursor counts bytes. What is known (the engine's key, sealed variables) is masked wherever it
stands; the rest is known by its looks: tokens, Authorization headers, keys by their names, passwords in addresses.
"""

import re
from collections.abc import Iterable
from typing import Any

_NAMES = (
    r"(?:api|access|private|secret|signing|encryption)[_-]?key(?:[_-]id)?|(?:hf|hub|auth|access|refresh|bearer|session|id)[_-]?tokens?"
    r"|client[_-]?secret|secret|passwd|password|huggingface_hub_token|hugging_face_hub_token"
)
_NO_VALUE = r"(?!None\b|null\b|True\b|False\b|true\b|false\b|\*)"
_PATTERNS = tuple(
    re.compile(pattern)
    for pattern in (
        # Tokens whose beginning says what they are.
        r"(?P<keep>\b(?:hf_|ghp_|gho_|ghs_|github_pat_|glpat-|xox[abp]-|AKIA))(?P<hide>[A-Za-z0-9_\-]{8,})",
        r"(?P<keep>\bsk-)(?P<hide>[A-Za-z0-9_\-]{12,})",
        # Authorization: Bearer …, in a header, a dictionary or prose.
        r"(?i:(?P<keep>\b(?:proxy-)?authorization[\"']?\s*[:=]\s*[\"']?(?:(?:bearer|basic|token)\s+)?))(?P<hide>[^\s\"',}\]]{4,})",
        r"(?P<keep>\b(?:Bearer|bearer|BEARER)\s+)(?P<hide>[A-Za-z0-9._~+/=\-]{8,})",
        # 'api_key': ['…', '…'], api_key=…, "password": "…"
        rf"(?i:(?P<keep>(?<![A-Za-z])(?:{_NAMES})[\"']?\s*[:=]\s*\[))(?P<hide>[^\]\n]+)",
        rf"(?i:(?P<keep>(?<![A-Za-z])(?:{_NAMES})[\"']?\s*[:=]\s*[\"']?)){_NO_VALUE}(?P<hide>[^\s\"',}}\]\[&]{{3,}})",
        # --api-key … as a word of a command line
        r"(?P<keep>--(?:api-key|hf-token|token|password|ssl-keyfile-password)(?:[ =]|[\"'], [\"']))(?P<hide>[^\s\"',\]]+)",
        # https://user:password@host, and what signs an address
        r"(?P<keep>\b[a-z][a-z0-9+.\-]*://[^\s/:@]*:)(?P<hide>[^\s/@]+)(?=@)",
        r"(?P<keep>[?&](?:token|access_token|api_key|key|sig|[Ss]ignature|X-Amz-Signature|X-Amz-Credential)=)(?P<hide>[^&\s\"']{4,})",
    )
)
_HINT = re.compile(r"(?i)hf_|gh[pos]_|github_pat|glpat-|xox|AKIA|sk-|authorization|bearer|key|token|secret|passw|://")
"""Lines without any of these are let through at once: almost all of them."""


def mask_bytes(data: bytes, known: Iterable[bytes] = ()) -> bytes:
    """A piece of a log without secrets, of the same length."""
    for secret in known:
        data = data.replace(secret, b"*" * len(secret))
    text = data.decode("latin-1")  # one character for each byte, whatever the encoding
    if not _HINT.search(text):
        return data
    return mask_text(text).encode("latin-1")


def mask_text(text: str) -> str:
    """A text without secrets, of the same length."""
    for pattern in _PATTERNS:
        text = pattern.sub(_stars, text)
    return text


def mask_values(value: Any) -> Any:
    """JSON-like data whose texts are masked."""
    if isinstance(value, str):
        return mask_text(value)
    if isinstance(value, list):
        return [mask_values(one) for one in value]
    if isinstance(value, dict):
        return {name: mask_values(one) for name, one in value.items()}
    return value


def _stars(match: re.Match[str]) -> str:
    return match["keep"] + "*" * len(match["hide"])
