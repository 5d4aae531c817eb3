"""Sources of models: add, change, remove, their tokens, and whether a token works."""

from django.db import IntegrityError, transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from console.access import services as access
from console.access.models import User
from console.catalog import lookups
from console.catalog.models import Source
from console.common import live
from console.common.errors import Refused
from console.common.secrets import encrypt
from workers.weights.hub_errors import HubError
from workers.weights.hub_types import DEFAULT_ENDPOINTS, SourceKind
from workers.weights.hub_types import Source as HubSource

_URL = "/sources/"


def save(source: Source, *, name: str, kind: str, endpoint: str, actor: User) -> Source:
    """Add a source or change one. Another address drops the token: it was given for the old one."""
    address = endpoint.strip() or DEFAULT_ENDPOINTS[SourceKind(kind)]
    if not address:
        raise Refused(_("A mirror needs its address, such as https://mirror.example.com."), field="endpoint")
    try:
        address = HubSource(SourceKind(kind), address).address
    except HubError as error:
        raise Refused(f"{error.next_step}", field="endpoint") from None
    moved = source.pk is not None and address != source.endpoint
    fresh = source.pk is None
    source.name, source.kind, source.endpoint = name, kind, address
    if moved:
        _forget_token(source)
    try:
        with transaction.atomic():
            if fresh:
                source.team = actor.team
            source.save()
            _record(source, "source.add" if fresh else "source.change", actor, kind=kind, endpoint=address)
    except IntegrityError:
        raise Refused(_("There is a source with this name already."), field="name") from None
    return source


def set_token(source: Source, *, token: str, actor: User) -> None:
    """Store an access token, encrypted; an empty one removes it. It is never shown again."""
    clean = token.strip()
    if not clean.isascii() or any(letter.isspace() or not letter.isprintable() for letter in clean):
        raise Refused(_("This is no token: it holds blanks or letters that a token can't have."), field="token")
    _forget_token(source)
    if clean:
        source.token, source.token_set_at = encrypt(clean), timezone.now()
    with transaction.atomic():
        source.save()
        _record(source, "source.set_token" if clean else "source.remove_token", actor)


def check_token(source: Source, *, actor: User) -> None:
    """Ask the source whose token this is, and keep the answer. Raises Refused with the source's reason."""
    if not source.token:
        raise Refused(_("%(name)s has no token to test.") % {"name": source}, field="token")
    source.token_checked_at, source.token_account, source.token_problem = timezone.now(), "", ""
    try:
        identity = lookups.whoami(source)
    except Refused as refusal:
        source.token_problem = refusal.message[:400]
        raise
    else:
        source.token_account = identity.name[:120]
    finally:
        source.save(update_fields=["token_checked_at", "token_account", "token_problem"])
        _record(source, "source.test_token", actor, account=source.token_account)


def remove(source: Source, *, actor: User, reason: str = "") -> None:
    """Remove a source with its token. Models fetched from it stay, but can't be fetched again."""
    with transaction.atomic():
        access.record(actor=actor, action="source.remove", target=source.name, target_url=_URL, reason=reason)
        source.delete()
        live.changed("source")


def _forget_token(source: Source) -> None:
    source.token, source.token_set_at = "", None
    source.token_checked_at, source.token_account, source.token_problem = None, "", ""


def _record(source: Source, action: str, actor: User, **details: str) -> None:
    access.record(actor=actor, action=action, target=source.name, target_url=_URL, **details)
    live.changed("source", source.pk)
