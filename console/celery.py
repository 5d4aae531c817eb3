"""The console's Celery application, worker and beat: `celery -A console.celery worker -B -Q console`."""

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
django.setup()

from django.conf import settings  # noqa: E402 - Django must be set up first

from workers.app import console_app  # noqa: E402

app = console_app(settings.REDIS_URL)
app.set_default()
app.conf.beat_schedule = {
    "reconcile": {"task": "console.jobs.reconcile", "schedule": 5.0, "options": {"expires": 5}},
    "watch_fleet": {"task": "console.deployments.watch_fleet", "schedule": 5.0, "options": {"expires": 5}},
    "prune_logs": {"task": "console.deployments.prune_logs", "schedule": 600.0, "options": {"expires": 600}},
    "incidents": {"task": "console.oncall.watch", "schedule": 5.0, "options": {"expires": 5}},
    "studies": {"task": "console.studies.drive", "schedule": 3.0, "options": {"expires": 3}},
    "alerts": {"task": "console.alerts.round", "schedule": 10.0, "options": {"expires": 10}},
}
app.conf.beat_schedule_filename = str(settings.ENV.console_dir / "beat-schedule")
app.autodiscover_tasks(
    ["console.jobs", "console.deployments", "console.alerts", "console.oncall", "console.studies"], force=True
)
