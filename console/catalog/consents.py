"""Code that comes with a model: pickle weights and Python files run with the engine's rights, so an admin must say yes.

The yes is bound to the files it was given for: other bytes under the same names need another one.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.utils.translation import gettext as _

from console.access import services as access
from console.access.models import User
from console.catalog.models import Consent, Copy
from console.common import live
from console.common.errors import Refused

CODES = {Consent.Kind.PICKLE: "weights.pickle_only", Consent.Kind.REMOTE_CODE: "code.remote_required"}
"""Kind of consent to the finding that asks for it."""
_CODE_ENDINGS = {
    Consent.Kind.PICKLE: (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"),
    Consent.Kind.REMOTE_CODE: (".py",),
}
_POINTERS = ("config.json", "tokenizer_config.json")
"""They say which class of which Python file, or of which other repository, is loaded."""
TRUST_ARGUMENT = "--trust-remote-code"


@dataclass(frozen=True)
class Question:
    """One thing that needs an admin's yes, and the yes if it was given."""

    kind: Consent.Kind
    code: str
    digest: str
    """Empty: the copy was not verified in full, so nobody can say which files the yes is for."""
    consent: Consent | None

    @property
    def label(self) -> str:
        """What it is, in words."""
        return str(self.kind.label)


def questions(copy: Copy, *, trusts_code: bool = False) -> list[Question]:
    """What this copy's last verification found that needs a yes. `trusts_code`: the engine will be told to run code."""
    found = codes_of(copy)
    asked = [kind for kind, code in CODES.items() if code in found]
    brings_code = any(file["path"].endswith(".py") for file in _files(copy))
    if trusts_code and brings_code and Consent.Kind.REMOTE_CODE not in asked:
        asked.append(Consent.Kind.REMOTE_CODE)
    given = {(one.kind, one.digest): one for one in copy.revision.consents.all()} if asked else {}
    result = []
    for kind in asked:
        digest = digest_of(copy, kind)
        result.append(Question(kind, CODES[kind], digest, given.get((kind.value, digest)) if digest else None))
    return result


def codes_of(copy: Copy) -> set[str]:
    """Codes of all findings of the last verification."""
    found = copy.verification.get("findings") if isinstance(copy.verification, Mapping) else None
    return {str(entry.get("code")) for entry in found or [] if isinstance(entry, Mapping)}


def needed_by(copy: Copy) -> set[str]:
    """Codes of what the last verification found that needs a yes, given or not."""
    return codes_of(copy) & set(CODES.values())


def digest_of(copy: Copy, kind: Consent.Kind) -> str:
    """Digest of the files that hold the code; empty if one of them was never hashed."""
    chosen = [file for file in _files(copy) if _holds_code(file["path"], kind)]
    sums = sorted((str(file["path"]), str(file.get("sha256") or "")) for file in chosen)
    if not sums or not all(sha256 for _path, sha256 in sums):
        return ""
    return hashlib.sha256("\n".join(f"{sha256}  {path}" for path, sha256 in sums).encode()).hexdigest()


def _files(copy: Copy) -> list[Mapping[str, Any]]:
    return list(copy.manifest.get("files", [])) if isinstance(copy.manifest, Mapping) else []


def _holds_code(path: str, kind: Consent.Kind) -> bool:
    return path.endswith(_CODE_ENDINGS[kind]) or (kind == Consent.Kind.REMOTE_CODE and path in _POINTERS)


def allowed_codes(copy: Copy) -> list[str]:
    """Codes of findings that an admin has allowed for exactly these files."""
    return [question.code for question in questions(copy) if question.consent]


def refuse_unallowed(copy: Copy, arguments: list[str]) -> None:
    """Raise Refused if a launch of this copy would run code that no admin has allowed."""
    trusts = any(argument.split("=")[0].replace("_", "-") == TRUST_ARGUMENT for argument in arguments)
    open_questions = [one for one in questions(copy, trusts_code=trusts) if one.consent is None]
    if open_questions:
        raise Refused(
            _(
                "%(copy)s brings %(what)s. It runs with the engine's rights, so an admin must allow it first, on the "
                "copy's page (%(page)s)."
            )
            % {
                "copy": copy,
                "what": _(" and ").join(one.label for one in open_questions),
                "page": f"/copies/{copy.pk}/",
            },
            field="copy",
        )


def allow(copy: Copy, *, kind: str, reason: str, actor: User) -> Consent:
    """Record an admin's yes for the files as they were verified last."""
    asked = next((one for one in questions(copy, trusts_code=True) if one.kind == kind), None)
    if asked is None:
        raise Refused(_("Nothing of this kind was found in the copy, so there is nothing to allow."))
    if not asked.digest or copy.state != "verified":
        raise Refused(_("Verify the copy in full first: the yes is given for exactly the files that were hashed."))
    with transaction.atomic():
        consent, fresh = Consent.objects.get_or_create(
            revision=copy.revision,
            kind=asked.kind,
            digest=asked.digest,
            defaults={"given_by": actor, "given_by_name": actor.get_username(), "reason": reason},
        )
        if fresh:
            access.record(
                actor=actor, action="copy.allow", target=str(copy), target_url=f"/copies/{copy.pk}/", reason=reason,
                kind=str(kind), files=asked.digest,
            )  # fmt: skip
        live.changed("model", copy.revision.model_id)
    return consent


def withdraw(consent: Consent, *, actor: User, reason: str) -> None:
    """Take a yes back; what runs goes on, the next launch is refused."""
    with transaction.atomic():
        access.record(
            actor=actor, action="copy.withdraw", target=str(consent.revision), reason=reason, kind=consent.kind,
            target_url=f"/models/{consent.revision.model_id}/",
        )  # fmt: skip
        consent.delete()
        live.changed("model", consent.revision.model_id)
