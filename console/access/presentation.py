"""The audit log in words."""

from django.db.models import Q, QuerySet
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from console.access.models import AuditEntry, User

DEEDS: dict[str, str | Promise] = {
    "alert.acknowledge": _("acknowledged"),
    "alert.change_rule": _("changed the rule"),
    "alert.delete_channel": _("deleted the channel"),
    "alert.delete_rule": _("deleted the rule"),
    "alert.end_silence": _("ended the silence"),
    "alert.save_channel": _("changed the channel"),
    "alert.silence": _("silenced"),
    "alert.test_channel": _("tested the channel"),
    "copy.allow": _("allowed code of"),
    "copy.delete": _("deleted"),
    "copy.forget": _("forgot"),
    "copy.repair": _("repaired"),
    "copy.withdraw": _("took back the yes to code of"),
    "deployment.create": _("deployed"),
    "deployment.fix": _("repaired"),
    "deployment.start": _("started"),
    "deployment.stop": _("stopped"),
    "deployment.delete": _("deleted"),
    "deployment.note": _("changed the notes of"),
    "deployment.reveal_key": _("looked at the key of"),
    "engine.install": _("installed"),
    "host.add": _("added"),
    "host.join": _("joined"),
    "host.remove": _("removed"),
    "host.renew_token": _("made a new join command for"),
    "instance.restart": _("restarted"),
    "job.cancel": _("cancelled"),
    "job.retry": _("retried"),
    "metrics.share": _("shared the metrics of"),
    "model.add": _("added"),
    "model.download": _("downloaded"),
    "person.add": _("added"),
    "person.change_password": _("changed the password of"),
    "person.change_role": _("changed the role of"),
    "person.disable": _("disabled"),
    "person.enable": _("enabled"),
    "person.reset_password": _("reset the password of"),
    "report.refused": _("refused a report of"),
    "source.add": _("added"),
    "source.change": _("changed"),
    "source.remove": _("removed"),
    "source.remove_token": _("removed the token of"),
    "source.set_token": _("stored a token for"),
    "source.test_token": _("tested the token of"),
}


def entries_for(user: User) -> QuerySet[AuditEntry]:
    """What people of the user's own team did, and what the console did by itself."""
    return AuditEntry.objects.filter(Q(actor__team_id=user.team_id) | Q(actor=None))


def deed(entry: AuditEntry) -> str:
    """What was done, as the words between who did it and on what; the dotted action if it has no words."""
    return str(DEEDS.get(entry.action, entry.action))
