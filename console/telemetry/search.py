"""The search behind Ctrl-K: pages and objects by name."""

from dataclasses import dataclass

from django.db.models import Q
from django.urls import reverse
from django.utils.translation import gettext as _

from console.access import policies
from console.access.models import User
from console.access.policies import Action
from console.catalog.models import Model
from console.common.states import Look
from console.deployments.models import Deployment
from console.fleet.models import Host
from console.jobs.models import Job

AT_MOST = 6


@dataclass(frozen=True)
class Hit:
    """One result: where it leads, and what it is called."""

    url: str
    title: str
    icon: str
    note: str = ""
    look: Look | None = None


@dataclass(frozen=True)
class Group:
    """Results of one kind."""

    title: str
    hits: list[Hit]


def find(user: User, query: str) -> list[Group]:
    """Results whose name contains all words of the query; without a query, the pages and the last jobs."""
    words = query.split()[:6]
    groups = [
        Group(_("Pages"), _pages(user, words)),
        Group(_("Deployments"), _deployments(user, words) if words else []),
        Group(_("Models"), _models(user, words) if words else []),
        Group(_("Hosts"), _hosts(user, words) if words else []),
        Group(_("Jobs"), _jobs(user, words)),
    ]
    return [group for group in groups if group.hits]


def _contains(field: str, words: list[str]) -> Q:
    found = Q()
    for word in words:
        found &= Q(**{f"{field}__icontains": word})
    return found


def _pages(user: User, words: list[str]) -> list[Hit]:
    view, operate, deploy, administer = Action.VIEW, Action.OPERATE, Action.DEPLOY, Action.ADMINISTER
    pages = [
        (view, "overview", _("Overview"), "layout-dashboard"),
        (view, "deployment_list", _("Deployments"), "rocket"),
        (deploy, "deployment_add", _("Deploy a model"), "plus"),
        (view, "route_list", _("Routes"), "share"),
        (operate, "key_list", _("Keys"), "key"),
        (view, "usage", _("Usage"), "gauge"),
        (view, "request_list", _("Requests"), "list-check"),
        (operate, "playground", _("Playground"), "message-circle"),
        (view, "model_list", _("Models"), "box"),
        (deploy, "model_add", _("Add a model"), "plus"),
        (view, "host_list", _("Hosts"), "server-2"),
        (administer, "host_add", _("Add a host"), "plus"),
        (view, "engine_list", _("Engines"), "cpu"),
        (deploy, "engine_install", _("Install an engine"), "plus"),
        (view, "job_list", _("Jobs"), "list-check"),
        (view, "oncall", _("On call"), "bell-ringing"),
        (administer, "people_list", _("People"), "users"),
        (administer, "person_add", _("Add a person"), "user-plus"),
        (operate, "audit_list", _("Audit"), "clipboard-list"),
        (view, "account_me", _("Your account"), "user"),
    ]
    return [
        Hit(reverse(name), title, icon)
        for action, name, title, icon in pages
        if policies.can(user, action) and all(word.lower() in title.lower() for word in words)
    ]


def _deployments(user: User, words: list[str]) -> list[Hit]:
    rows = policies.visible(user, Deployment.objects.lasting().filter(_contains("name", words)))[:AT_MOST]
    return [Hit(reverse("deployment_detail", args=[row.pk]), row.name, "rocket", look=row.look) for row in rows]


def _models(user: User, words: list[str]) -> list[Hit]:
    rows = policies.visible(user, Model.objects.filter(_contains("name", words)))[:AT_MOST]
    return [Hit(reverse("model_detail", args=[row.pk]), row.name, "box") for row in rows]


def _hosts(user: User, words: list[str]) -> list[Hit]:
    rows = policies.visible(user, Host.objects.filter(_contains("name", words)))[:AT_MOST]
    return [Hit(reverse("host_detail", args=[row.pk]), row.name, "server-2", look=row.look) for row in rows]


def _jobs(user: User, words: list[str]) -> list[Hit]:
    rows = policies.visible(user, Job.objects.filter(_contains("title", words))).order_by("-pk")[:AT_MOST]
    return [Hit(reverse("job_detail", args=[row.pk]), row.title, "list-check", f"#{row.pk}", row.look) for row in rows]
