"""Pages of hosts."""

import re

from django.contrib import messages
from django.core.paginator import Paginator
from django.db.models import Prefetch
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods

from console import env
from console.access import policies
from console.access.policies import Action
from console.common.errors import Refused
from console.common.forms import add_refusal
from console.common.parts import wants_part
from console.fleet import (
    agent_card,
    device_presentation,
    environment,
    host_rows,
    joining,
    labels,
    membership,
    presentation,
    services,
)
from console.fleet.filters import HostFilter
from console.fleet.forms import AddHostForm, HostLabelsForm, PortsForm
from console.fleet.models import Engine, Host
from console.fleet.upkeep_views import ask
from workers.host_facts import live_of

PAGE_SIZE = 50
MOST_COPIES = 8
"""Copies that the host's page names; those of forty models would push its agent out of sight, and have a page of their own."""
LIVE = ("queued", "running", "cancelling", "interrupted")
"""States of steps that go on or will, if their job's is one, too: one that failed leaves steps queued, for a retry."""


@require_GET
def host_list(request: HttpRequest) -> HttpResponse:
    """All hosts with presence, devices, engines, instances and what is wrong with them."""
    every = policies.visible(request.user, Host.objects.all())
    chosen = HostFilter(request.GET, queryset=every.only(*host_rows.COLUMNS).order_by("name"))
    page = Paginator(chosen.qs, PAGE_SIZE).get_page(request.GET.get("page"))
    context = {
        "page": page,
        "rows": host_rows.rows(page),
        "filter": chosen,
        "filtered": any(request.GET.get(name) for name in HostFilter.base_filters if name != "sort"),
        "totals": presentation.totals(every),
    }
    return render(request, "fleet/_host_rows.html" if wants_part(request) else "fleet/hosts.html", context)


def _shown_look(host: Host) -> str:
    return "removed" if host.is_removed else host.presence


_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def _owners(host: Host) -> dict[str, tuple[str, str]]:
    """Name and address of each instance that holds memory by the last heartbeat, which may be older than its end."""
    live = live_of(host.vitals)
    if live is None:
        return {}
    told = [*live.processes, *(one for gpu in live.gpus.gpus for one in gpu.processes)]
    # What a process has in its environment may be anything.
    uuids = {one.instance for one in told if _UUID.fullmatch(one.instance)}
    return {
        str(one.uuid): (f"{one.deployment.name} #{one.number}", reverse("instance_detail", args=[one.pk]))
        for one in host.instances.filter(uuid__in=uuids).select_related("deployment")
    }


@require_GET
def host_detail(request: HttpRequest, pk: int) -> HttpResponse:
    """One host: presence, devices, engines, environment, what runs there, copies, agent."""
    rows = Host.objects.prefetch_related("devices", Prefetch("engines", Engine.objects.filter(present=True)))
    host = policies.get(request.user, rows, Action.VIEW, pk=pk)
    host.shown_look = _shown_look(host)  # type: ignore[attr-defined]
    instances = list(host.instances.exclude(state="stopped").select_related("deployment", "host", "spec__engine")[:100])
    crashed = sum(one.state == "crashed" for one in instances)
    count, ready = host_rows.instance_counts([host.pk])[host.pk]
    copies = host.copies.exclude(state="removed")
    facts = environment.facts_of_host(host)
    context = {
        "host": host,
        "removed": host.is_removed,
        "truth": presentation.truth(host, instances=count, ready=ready, crashed=crashed),
        "work": presentation.work_look(host, count),
        "warnings": presentation.warnings(host),
        "agent": agent_card.describe(host),
        "facts": presentation.facts(host),
        "card": environment.card(host, list(host.engines.all())),
        "machine": device_presentation.machine(facts),
        "xids": device_presentation.xids(facts),
        "xid_problem": facts.xid.problem if facts else "",
        **device_presentation.shown(host, facts, _owners(host)),
        "instances": instances,
        "copies": copies.select_related("revision__model")[:MOST_COPIES],
        "more_copies": max(0, copies.count() - MOST_COPIES),
        "steps": host.steps.filter(state__in=LIVE, job__state__in=LIVE).select_related("job").order_by("pk")[:20],
    }
    return render(request, "fleet/host.html", context)


@never_cache
@require_http_methods(["GET", "POST"])
def host_add(request: HttpRequest) -> HttpResponse:
    """Add a host, and show its join command once."""
    actor = policies.require(request.user, Action.ADMINISTER)
    form = AddHostForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            host, token = services.add_host(name=form.cleaned_data["name"], actor=actor)
        except Refused as refusal:
            add_refusal(form, refusal)
        else:
            return _show_join(request, host, token)
    return render(request, "fleet/host_add.html", {"form": form}, status=400 if form.errors else 200)


@never_cache
@require_http_methods(["GET", "POST"])
def host_token(request: HttpRequest, pk: int) -> HttpResponse:
    """Make a new join token for a host that has not joined, or shall join anew."""
    host = policies.get(request.user, Host.objects.all(), Action.ADMINISTER, pk=pk)
    if request.method == "POST":
        token = services.renew_join_token(host, actor=policies.require(request.user, Action.ADMINISTER))
        return _show_join(request, host, token)
    context = {
        "title": _("New join command for %s") % host.name,
        "button": _("Make a new command"),
        "consequences": [
            _("An older command for this host stops working."),
            _("A machine that runs the new one takes this host's place; engines that run now keep serving."),
        ],
    }
    return ask(request, host, context)


def _show_join(request: HttpRequest, host: Host, token: str) -> HttpResponse:
    # Answered directly, not after a redirect: the token is stored hashed only.
    context = {
        "host": host,
        "command": joining.command_for_bare_machine(token),
        "short_command": joining.command_with_slipway(token),
        "hours": membership.JOIN_TOKEN_HOURS,
        "elsewhere": env.serves_other_machines(),
        "url": env.hosts_url(),
        "fingerprint": joining.fingerprint(),
        "offline": env.environment().wheels_dir is not None,
        "arrived": False,
    }
    return render(request, "fleet/join_once.html", context)


@require_http_methods(["GET", "POST"])
def host_ports(request: HttpRequest, pk: int) -> HttpResponse:
    """Change which ports instances of a host may use."""
    host = policies.get(request.user, Host.objects.all(), Action.ADMINISTER, pk=pk)
    form = PortsForm(request.POST or None, initial={"first": host.port_first, "last": host.port_last})
    if request.method == "POST" and form.is_valid():
        try:
            said = services.set_ports(
                host,
                first=form.cleaned_data["first"],
                last=form.cleaned_data["last"],
                actor=policies.require(request.user, Action.ADMINISTER),
            )
        except Refused as refusal:
            add_refusal(form, refusal)
        else:
            messages.success(request, said)
            return redirect("host_detail", pk=host.pk)
    context = {
        "form": form,
        "title": _("Ports of %s") % host.name,
        "button": _("Save"),
        "consequences": [
            _("An instance that starts takes a free port of this range; one that runs keeps the port that it has."),
        ],
    }
    return ask(request, host, context)


@require_http_methods(["GET", "POST"])
def host_labels(request: HttpRequest, pk: int) -> HttpResponse:
    """Change what people say of a host."""
    host = policies.get(request.user, Host.objects.all(), Action.ADMINISTER, pk=pk)
    form = HostLabelsForm(request.POST or None, initial={"labels": labels.text_of(host.labels)})
    if request.method == "POST" and form.is_valid():
        actor = policies.require(request.user, Action.ADMINISTER)
        labels.set_labels(host, labels=form.cleaned_data["labels"], actor=actor)
        return redirect("host_detail", pk=pk)
    context = {
        "form": form,
        "title": _("Labels of %s") % host.name,
        "button": _("Save"),
        "consequences": [_("They count for what is placed from now on. What runs stays where it is.")],
    }
    return ask(request, host, context)


@require_GET
def host_arrival(request: HttpRequest, pk: int) -> HttpResponse:
    """How far a joining host is: a part of the page with its join command."""
    host = policies.get(request.user, Host.objects.all(), Action.ADMINISTER, pk=pk)
    arrived = not host.join_token_sha256 and host.is_online
    return render(request, "fleet/_arrival.html", {"host": host, "arrived": arrived})
