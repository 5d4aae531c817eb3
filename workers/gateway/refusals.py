"""Refusals in OpenAI's form, as rules of HAProxy."""

import json
from collections.abc import Sequence

_KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}


def json_error(message: str, code: str, kind: str = "invalid_request_error") -> str:
    """An error's body, quoted for the configuration. Expressions of HAProxy in `message` are left as they are."""
    # A plain apostrophe would end the quoting.
    body = json.dumps(
        {"error": {"message": message.replace("'", "’"), "type": kind, "param": None, "code": code}},
        ensure_ascii=False,
        separators=(",", ":"),
    )
    return f"'{body}'"


def refuse(
    status: int,
    code: str,
    message: str,
    condition: str,
    *,
    headers: Sequence[str] = (),
    kind: str = "",
    before: Sequence[str] = (),
) -> list[str]:
    """Rules that answer with an error if `condition` holds; `before` are rules that only then run, to prepare it.

    The code also goes into the access log, as `refusal`.
    """
    marked = f"{{ var(txn.refusal) -m str {code} }}"
    shown = " ".join(f"hdr {name} {value}" for name, _space, value in (header.partition(" ") for header in headers))
    body = json_error(message, code, kind or _KINDS.get(status, "invalid_request_error"))
    return [
        f"http-request set-var(txn.refusal) str({code}) if {condition}",
        *[f"{rule} if {marked}" for rule in before],
        " ".join(
            part
            for part in (
                f"http-request return status {status} content-type application/json",
                shown,
                f"lf-string {body} if {marked}",
            )
            if part
        ),
    ]
