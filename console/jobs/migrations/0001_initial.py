import django.db.models.deletion
import django.utils.timezone
import workers.contracts
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('access', '0002_default_team'),
        ('access', '__first__'),
        ('fleet', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='Job',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('state_since', models.DateTimeField(default=django.utils.timezone.now)),
                ('state_reason', models.TextField(blank=True, default='')),
                ('state', models.CharField(choices=[('queued', 'queued'), ('running', 'running'), ('cancelling', 'cancelling'), ('failed', 'failed'), ('succeeded', 'succeeded'), ('cancelled', 'cancelled')], default='queued', max_length=12)),
                ('kind', models.CharField(max_length=30)),
                ('title', models.CharField(max_length=200)),
                ('subject_kind', models.CharField(blank=True, max_length=30)),
                ('subject_id', models.BigIntegerField(null=True)),
                ('reason', models.TextField(blank=True)),
                ('idempotency_key', models.CharField(max_length=64, null=True, unique=True)),
                ('payload', models.JSONField(default=dict)),
                ('failure', models.JSONField(null=True)),
                ('last_event', models.PositiveBigIntegerField(default=0)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('started_at', models.DateTimeField(null=True)),
                ('finished_at', models.DateTimeField(null=True)),
                ('requested_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('team', models.ForeignKey(default=1, on_delete=django.db.models.deletion.PROTECT, to='access.team')),
            ],
            options={
                'ordering': ['-pk'],
                'indexes': [models.Index(fields=['state', '-id'], name='jobs_job_state_773274_idx'), models.Index(fields=['kind', '-id'], name='jobs_job_kind_aaef78_idx'), models.Index(fields=['subject_kind', 'subject_id', '-id'], name='jobs_job_subject_76221b_idx')],
            },
        ),
        migrations.CreateModel(
            name='Step',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('state_since', models.DateTimeField(default=django.utils.timezone.now)),
                ('state_reason', models.TextField(blank=True, default='')),
                ('state', models.CharField(choices=[('queued', 'queued'), ('running', 'running'), ('interrupted', 'interrupted'), ('cancelling', 'cancelling'), ('failed', 'failed'), ('succeeded', 'succeeded'), ('cancelled', 'cancelled')], default='queued', max_length=12)),
                ('position', models.PositiveSmallIntegerField()),
                ('kind', models.CharField(max_length=20)),
                ('payload', models.JSONField(default=dict)),
                ('deadline_seconds', models.FloatField()),
                ('fence', models.PositiveIntegerField(default=0)),
                ('sent_at', models.DateTimeField(null=True)),
                ('heard_at', models.DateTimeField(null=True)),
                ('progress', models.JSONField(default=dict)),
                ('result', models.JSONField(default=dict)),
                ('failure', models.JSONField(null=True)),
                ('started_at', models.DateTimeField(null=True)),
                ('finished_at', models.DateTimeField(null=True)),
                ('host', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='steps', to='fleet.host')),
                ('job', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='steps', to='jobs.job')),
            ],
            options={
                'ordering': ['job', 'position'],
                'indexes': [models.Index(fields=['state', 'host'], name='jobs_step_state_c76f2b_idx')],
                'constraints': [models.UniqueConstraint(fields=('job', 'position'), name='one_step_per_position')],
            },
        ),
        migrations.CreateModel(
            name='Event',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('seq', models.PositiveBigIntegerField()),
                ('at', models.DateTimeField(default=django.utils.timezone.now)),
                ('level', models.CharField(choices=[('debug', 'debug'), ('info', 'info'), ('warning', 'warning'), ('error', 'error')], default=workers.contracts.Level['INFO'], max_length=8)),
                ('text', models.TextField()),
                ('job', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='events', to='jobs.job')),
                ('step', models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='events', to='jobs.step')),
            ],
            options={
                'ordering': ['job', 'seq'],
                'constraints': [models.UniqueConstraint(fields=('job', 'seq'), name='one_event_per_seq')],
            },
        ),
    ]
