"""People, teams, and who did what."""

from typing import Any

from django.contrib.auth.models import AbstractUser, UserManager
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _


class Role(models.TextChoices):
    """What a person may do. Each role may do everything that the ones below it may."""

    ADMIN = "admin", _("admin")
    OPERATOR = "operator", _("operator")
    VIEWER = "viewer", _("viewer")


class Team(models.Model):
    """Owner of hosts, models, deployments and jobs. There is one, `default`, until more are made."""

    name = models.CharField(max_length=60, unique=True)

    def __str__(self) -> str:
        return self.name


DEFAULT_TEAM_ID = 1
"""Primary key of the team `default`: the first row of its table, made by the first migration."""


class User(AbstractUser):
    """A person who signs in."""

    role = models.CharField(_("role"), max_length=10, choices=Role.choices, default=Role.VIEWER)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, default=DEFAULT_TEAM_ID)
    must_change_password = models.BooleanField(default=False)

    objects = UserManager["User"]()  # type: ignore[misc]  # AbstractUser declares it as a class variable

    def __str__(self) -> str:
        return self.username


class Owned(models.Model):
    """Base of everything that a team owns."""

    team = models.ForeignKey(Team, on_delete=models.PROTECT, default=DEFAULT_TEAM_ID)

    class Meta:
        abstract = True


class AuditEntry(models.Model):
    """Who did what, on what, why, and from where. Written once, never changed."""

    at = models.DateTimeField(default=timezone.now, db_index=True)
    actor = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    actor_name = models.CharField(max_length=150)
    """Kept beside the reference, so that the entry still speaks when the person is gone. `system` for the console."""
    action = models.CharField(max_length=60)
    """Verb in dotted form, such as `instance.restart`."""
    target = models.CharField(max_length=200, blank=True)
    target_url = models.CharField(max_length=200, blank=True)
    reason = models.TextField(blank=True)
    details: Any = models.JSONField(default=dict)
    address = models.CharField(max_length=45, blank=True)

    class Meta:
        ordering = ["-at", "-pk"]

    def __str__(self) -> str:
        return f"{self.actor_name}: {self.action} {self.target}"
