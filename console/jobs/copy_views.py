"""Pages that do something with a copy: verify, repair, delete, forget, allow its code."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST

from console.access import policies
from console.access.policies import Action
from console.catalog import consents
from console.catalog.models import Consent, Copy
from console.common.errors import Refused
from console.common.forms import add_refusal
from console.common.parts import confirmation
from console.common.spans import readable_bytes
from console.fleet.usage import usage_of
from console.jobs import copy_jobs, copy_sharing, host_jobs
from console.jobs.asking import ask
from console.jobs.copy_checks import bad_files
from console.jobs.copy_forms import ConsentForm


def _copy(request: HttpRequest, pk: int, action: Action) -> Copy:
    rows = Copy.objects.select_related("revision__model__origin", "host")
    return policies.get(request.user, rows, action, team_path="revision__model__team", pk=pk)


@require_POST
def copy_verify(request: HttpRequest, pk: int) -> HttpResponse:
    """Check a copy's files again."""
    copy = _copy(request, pk, Action.OPERATE)
    job = host_jobs.verify_copy(copy, actor=policies.require(request.user, Action.OPERATE))
    return redirect("job_detail", pk=job.pk)


@require_http_methods(["GET", "POST"])
def copy_repair(request: HttpRequest, pk: int) -> HttpResponse:
    """Say which files will be fetched again, then fetch them."""
    copy = _copy(request, pk, Action.OPERATE)
    bad, giver = bad_files(copy), copy_sharing.giver_for_repair(copy)
    source = giver.host if giver is not None else copy.revision.model.origin
    heading = _("Resume the download on %(host)s") if copy.is_partial else _("Repair the copy on %(host)s")
    rest = _("what has not come yet")
    what = ", ".join(bad[:5]) + (_(" and %d more") % (len(bad) - 5) if len(bad) > 5 else "")
    context = {
        "title": _("Repair %(copy)s") % {"copy": copy},
        "heading": heading % {"host": copy.host},
        "consequences": [
            (
                _("Fetched from %(source)s: %(files)s.")
                if copy.is_partial
                else _("Fetched again from %(source)s: %(files)s.")
            )
            % {
                "source": source or "–",
                "files": what or (rest if copy.is_partial else _("every file that is missing or wrong")),
            },
            _("Sound files stay as they are. Everything is verified afterwards."),
        ],
        "button": _("Resume") if copy.is_partial else _("Repair"),
        "back": _page(copy),
        "back_label": str(copy.revision.model),
    }
    return ask(request, context, lambda actor, reason: copy_sharing.repair(copy, actor=actor, reason=reason))


@require_http_methods(["GET", "POST"])
def copy_delete(request: HttpRequest, pk: int) -> HttpResponse:
    """Say what will be gone and who would miss it, then delete the files."""
    copy = _copy(request, pk, Action.DEPLOY)
    gone = _("What has come of it so far is removed from the disk. Another download begins from nothing.")
    if not copy.is_partial:
        gone = _("%(size)s in %(path)s are removed from the disk. They can't be brought back, only fetched again.") % {
            "size": readable_bytes(copy.size_bytes), "path": copy.path,
        }  # fmt: skip
    heading = _("Discard the parts on %(host)s") if copy.is_partial else _("Delete the files on %(host)s")
    context = {
        "title": _("Delete %(copy)s") % {"copy": copy},
        "heading": heading % {"host": copy.host},
        "consequences": [gone, *_users(copy)],
        "button": _("Discard") if copy.is_partial else _("Delete"),
        "danger": True,
        "back": _page(copy),
        "back_label": str(copy.revision.model),
    }
    return ask(request, context, lambda actor, reason: copy_jobs.delete(copy, actor=actor, reason=reason))


@require_http_methods(["GET", "POST"])
def copy_forget(request: HttpRequest, pk: int) -> HttpResponse:
    """Take a copy out of the catalogue, files untouched."""
    copy = _copy(request, pk, Action.DEPLOY)
    context = {
        "title": _("Forget %(copy)s") % {"copy": copy},
        "heading": _("Forget the copy on %(host)s") % {"host": copy.host},
        "consequences": [
            _("Its files stay in %(path)s; add the directory again to get it back.") % {"path": copy.path},
            *_users(copy),
        ],
        "button": _("Forget"),
        "back": _page(copy),
        "back_label": str(copy.revision.model),
    }
    return ask(
        request,
        context,
        lambda actor, reason: copy_jobs.forget(copy, actor=actor, reason=reason),
        then="model_list",
    )


@require_http_methods(["GET", "POST"])
def copy_allow(request: HttpRequest, pk: int, kind: str) -> HttpResponse:
    """An admin's explicit yes to code that comes with a copy's files."""
    copy = _copy(request, pk, Action.ADMINISTER)
    actor = policies.require(request.user, Action.ADMINISTER)
    label = Consent.Kind(kind).label if kind in Consent.Kind.values else kind
    form = ConsentForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            consents.allow(copy, kind=kind, reason=form.cleaned_data["reason"], actor=actor)
        except Refused as refusal:
            add_refusal(form, refusal)
        else:
            return redirect("copy_detail", pk=copy.pk)
    context = {
        "form": form,
        "title": _("Allow %(what)s") % {"what": label},
        "consequences": [
            _("%(what)s of %(model)s will run on hosts with all rights of the engine: files, network, memory.")
            % {"what": str(label)[:1].upper() + str(label)[1:], "model": copy.revision},
            _("The yes holds for exactly the files that were verified. Other files under the same names need another."),
        ],
        "button": _("Allow"),
        "danger": True,
        "back": _page(copy),
        "back_label": str(copy.revision.model),
    }
    return confirmation(request, context)


@require_http_methods(["GET", "POST"])
def consent_withdraw(request: HttpRequest, pk: int) -> HttpResponse:
    """Take a yes back."""
    rows = Consent.objects.select_related("revision__model")
    consent = policies.get(request.user, rows, Action.ADMINISTER, team_path="revision__model__team", pk=pk)
    context = {
        "title": _("Take back the yes to %(what)s") % {"what": consent.get_kind_display()},
        "consequences": [_("What serves now goes on. The next launch is refused until an admin allows it again.")],
        "button": _("Take back"),
        "back": reverse("model_detail", args=[consent.revision.model_id]),
        "back_label": str(consent.revision.model),
    }
    return ask(
        request,
        context,
        lambda actor, reason: consents.withdraw(consent, actor=actor, reason=reason),
        then="model_list",
    )


def _users(copy: Copy) -> list[str]:
    usage = usage_of([copy])[copy.pk]
    found = []
    if usage.live:
        found.append(_("In use by %(names)s, so this will be refused.") % {"names": usage.live_names})
    if usage.idle:
        names = ", ".join(user.name for user in usage.idle)
        found.append(_("%(names)s could not start again without it.") % {"names": names})
    return found or [_("No deployment uses it.")]


def _page(copy: Copy) -> str:
    return reverse("copy_detail", args=[copy.pk])
