"""LoRA adapters of deployments: add, load anew, remove; their files on the hosts; what hosts report of them."""

import uuid
from collections.abc import Iterable

import structlog
from django.db import IntegrityError, transaction
from django.db.models import Max
from django.utils import timezone
from django.utils.translation import gettext as _

from console.access import services as access
from console.access.models import User
from console.catalog.models import Copy, Revision
from console.common import live
from console.common.errors import Refused
from console.common.states import move
from console.deployments import adapter_fit, public
from console.deployments.models import Adapter, AdapterLoad, Attempt, Deployment, Instance
from console.fleet import desired
from console.fleet.models import Host
from console.jobs import copy_fetching, copy_jobs, copy_sharing, host_jobs
from workers.contracts import AdapterOrder, AdaptersObserved
from workers.vllm.lora import settings_of

log = structlog.get_logger(__name__)


def add(
    deployment: Deployment, *, name: str, revision: Revision, other_base: bool, actor: User, reason: str = ""
) -> Adapter:
    """Give a deployment an adapter under a name. Its files are brought to the hosts, then each ready engine loads it.

    Refused, with nothing changed, when the engines could not load it, when the name is taken, or when a host can't get it.
    """
    adapter_fit.check(deployment, revision, other_base=other_base)
    _check_name(deployment, name)
    try:
        with transaction.atomic():
            adapter = Adapter.objects.create(
                deployment=deployment, name=name, revision=revision, load=_now(), created_by=actor
            )
            for instance in _running(deployment):
                AdapterLoad.objects.create(adapter=adapter, instance=instance, state_reason=_("waits for its host"))
            for host in _hosts(deployment):
                _bring_files(adapter, host, actor)
            _changed(adapter, "adapter.add", actor=actor, reason=reason, revision=str(revision))
    except IntegrityError:
        raise Refused(_("%(name)s has an adapter of this name already.") % {"name": deployment}, field="name") from None
    return adapter


def remove(adapter: Adapter, *, actor: User, reason: str) -> None:
    """Take an adapter away: its name is unknown at once, engines unload it. Its files stay."""
    with transaction.atomic():
        _changed(adapter, "adapter.remove", actor=actor, reason=reason)
        adapter.delete()


def load_again(adapter: Adapter, *, actor: User, reason: str) -> None:
    """Have every engine load an adapter anew, from files that are brought or verified first where they must be."""
    with transaction.atomic():
        adapter = Adapter.objects.select_for_update().select_related("deployment", "revision__model").get(pk=adapter.pk)
        adapter.load = max(_now(), adapter.load + 1)
        adapter.save(update_fields=["load"])
        for load in adapter.loads.all():
            _queue(load, reason, actor)
        for host in _hosts(adapter.deployment):
            _bring_files(adapter, host, actor)
        _changed(adapter, "adapter.load_again", actor=actor, reason=reason)


def orders(instance: Instance) -> list[AdapterOrder]:
    """The adapters that an instance's engine shall have: those whose files are verified on its host."""
    if not settings_of(instance.spec.arguments).enabled:
        return []
    adapters = list(instance.deployment.adapters.all())
    copies = {
        copy.revision_id: copy
        for copy in Copy.objects.filter(
            host=instance.host, revision__in=[one.revision_id for one in adapters], state="verified"
        ).order_by("-pk")
    }
    return [
        AdapterOrder(name=one.name, path=copy.path, files=copy.manifest.get("files", []), load=one.load)
        for one in adapters
        if (copy := copies.get(one.revision_id)) is not None
    ]


def observed(instance: Instance, report: AdaptersObserved) -> None:
    """What became of an engine's adapters. What is said of an older process, or an older order, counts no more."""
    newest = Attempt.objects.filter(instance=instance).aggregate(newest=Max("number"))["newest"] or 0
    if report.attempt < newest:
        return
    known = {one.name: one for one in instance.deployment.adapters.all()}
    for seen in report.adapters:
        adapter = known.get(seen.name)
        if adapter is None or adapter.load != seen.load:
            continue
        load, _made = AdapterLoad.objects.get_or_create(adapter=adapter, instance=instance)
        load.attempt = report.attempt
        load.failure = seen.failure.model_dump(mode="json") if seen.failure else None
        load.save(update_fields=["attempt", "failure"])
        move(load, to=seen.state, reason=seen.failure.message if seen.failure else "")
    live.changed("adapter", instance.deployment_id)


def process_started(instance: Instance) -> None:
    """A new process has none of them yet."""
    for load in instance.adapter_loads.exclude(state="queued"):
        _queue(load, _("a new process was started"), None)


def attend(instance: Instance) -> None:
    """An instance is ready: bring the files of its deployment's adapters to its host, if it hasn't them."""
    if not settings_of(instance.spec.arguments).enabled:
        return
    for adapter in instance.deployment.adapters.select_related("created_by", "revision__model__origin"):
        load, _made = AdapterLoad.objects.get_or_create(adapter=adapter, instance=instance)
        try:
            with transaction.atomic():
                _bring_files(adapter, instance.host, adapter.created_by)
        except Refused as refusal:
            load.failure = {"code": "adapter.no_files", "message": refusal.message}
            load.save(update_fields=["failure"])
            move(load, to="failed", reason=refusal.message)
            live.changed("adapter", instance.deployment_id)


def copy_judged(copy: Copy) -> None:
    """A copy was verified, or found damaged: hosts whose engines shall have it as an adapter are told."""
    instances = list(
        Instance.objects.filter(
            deployment__adapters__revision=copy.revision_id, host=copy.host_id, ordered=True
        ).distinct()
    )
    if not instances:
        return
    if copy.state != "verified":
        for load in AdapterLoad.objects.filter(adapter__revision=copy.revision_id, instance__in=instances):
            message = _("its copy on %(host)s is %(state)s") % {"host": copy.host, "state": copy.look.word}
            load.failure = {"code": "adapter.unverified", "message": message, "next": _("Verify or repair the copy.")}
            load.save(update_fields=["failure"])
            move(load, to="failed", reason=message)
    desired.change(copy.host)
    for pk in {one.deployment_id for one in instances}:
        live.changed("adapter", pk)


# -- inside -----------------------------------------------------------------------------------------------------------


def _now() -> int:
    return int(timezone.now().timestamp() * 1000)


def _running(deployment: Deployment) -> Iterable[Instance]:
    return deployment.instances.filter(ordered=True).select_related("host")


def _hosts(deployment: Deployment) -> list[Host]:
    return list({one.host_id: one.host for one in _running(deployment)}.values())


def _check_name(deployment: Deployment, name: str) -> None:
    spec = deployment.current_spec
    if name in public.served_names(deployment) or (spec and name in settings_of(spec.arguments).static):
        raise Refused(_("Its engines serve “%(name)s” already.") % {"name": name}, field="name")
    if why := public.why_taken(deployment, name):
        raise Refused(why, field="name")


def _bring_files(adapter: Adapter, host: Host, actor: User | None) -> None:
    """Start what brings an adapter's verified files to a host; nothing where they are there or on their way."""
    revision = adapter.revision
    copy = Copy.objects.filter(revision=revision, host=host).exclude(state="removed").select_related(
        "revision__model", "host"
    ).order_by("-pk").first()  # fmt: skip
    if copy is not None and copy.state in ("verified", "downloading"):
        return
    if copy is not None and copy.state in ("unverified", "damaged"):
        host_jobs.verify_copy(copy, actor=actor)
        return
    giver = next((one for one in copy_sharing.givers(revision) if one.host_id != host.pk and one.host.is_online), None)
    key = str(uuid.uuid4())
    if actor is not None and giver is not None:
        copy_sharing.share(giver, hosts=[host], actor=actor, idempotency_key=key)
    elif actor is not None and revision.is_pinned and revision.model.origin is not None:
        files = copy_fetching.wanted_files(revision)
        copy_jobs.fetch_to(revision, files, hosts=[host], actor=actor, idempotency_key=key, rate_limit=0)
    else:
        raise Refused(
            _("%(host)s has not the files of %(model)s, and can get them from nowhere: no host that is online has a "
              "verified copy. Verify one, or download it.") % {"host": host, "model": revision.model},
            field="revision",
        )  # fmt: skip


def _queue(load: AdapterLoad, reason: str, actor: User | None) -> None:
    load.failure = None
    load.save(update_fields=["failure"])
    move(load, to="queued", reason=reason, actor=actor)


def _changed(adapter: Adapter, action: str, *, actor: User, reason: str, **details: str) -> None:
    deployment = adapter.deployment
    access.record(
        actor=actor, action=action, target=f"{deployment.name}: {adapter.name}", reason=reason,
        target_url=f"/deployments/{deployment.pk}/", **details,
    )  # fmt: skip
    for host in _hosts(deployment):
        desired.change(host)
    live.changed("adapter", deployment.pk)
