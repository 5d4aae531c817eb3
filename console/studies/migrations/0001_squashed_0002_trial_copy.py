import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    replaces = [
        ('studies', '0001_studies'),
        ('studies', '0002_trial_copy'),
    ]

    initial = True

    dependencies = [
        ('access', '0001_squashed_0002_default_team'),
        ('access', '__first__'),
        ('benchmarks', '0001_squashed_0003_endpoints'),
        ('catalog', '0001_squashed_0004_revision_shape'),
        ('deployments', '0001_squashed_0010_adapters'),
        ('fleet', '0001_squashed_0005_host_labels'),
        ('jobs', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='Study',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('state_since', models.DateTimeField(default=django.utils.timezone.now)),
                ('state_reason', models.TextField(blank=True, default='')),
                ('state', models.CharField(choices=[('queued', 'queued'), ('clearing', 'making room'), ('running', 'running'), ('finishing', 'giving the device back'), ('failed', 'failed'), ('cancelled', 'cancelled'), ('succeeded', 'succeeded')], default='queued', max_length=12)),
                ('title', models.CharField(max_length=120)),
                ('ready_made', models.CharField(blank=True, max_length=30)),
                ('devices', models.JSONField(default=list)),
                ('arguments', models.JSONField(default=list)),
                ('environment', models.JSONField(default=dict)),
                ('probe', models.JSONField(default=dict)),
                ('start_deadline_seconds', models.FloatField(default=1800)),
                ('profile', models.CharField(max_length=20)),
                ('workload', models.JSONField(default=dict)),
                ('loads', models.JSONField(default=dict)),
                ('targets', models.JSONField(default=dict)),
                ('with_quality', models.BooleanField(default=True)),
                ('neighbours', models.CharField(choices=[('leave', "don't begin while anything runs there"), ('beside', 'measure beside it: its requests slow down, and disturb the numbers'), ('stop', 'stop it for the study, and start it again afterwards')], default='leave', max_length=6)),
                ('stopped', models.JSONField(default=list)),
                ('waits_for', models.TextField(blank=True)),
                ('ending', models.CharField(blank=True, max_length=12)),
                ('finding', models.TextField(blank=True)),
                ('reason', models.TextField(blank=True)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('started_at', models.DateTimeField(null=True)),
                ('finished_at', models.DateTimeField(null=True)),
                ('copy', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='catalog.copy')),
                ('dataset', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='benchmarks.dataset')),
                ('deployment', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='studies', to='deployments.deployment')),
                ('engine', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='fleet.engine')),
                ('host', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='fleet.host')),
                ('own', models.OneToOneField(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='study', to='deployments.deployment')),
                ('requested_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('team', models.ForeignKey(default=1, on_delete=django.db.models.deletion.PROTECT, to='access.team')),
            ],
            options={
                'ordering': ['-pk'],
                'indexes': [models.Index(fields=['state', '-id'], name='studies_stu_state_867cd0_idx')],
            },
        ),
        migrations.CreateModel(
            name='Trial',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('state_since', models.DateTimeField(default=django.utils.timezone.now)),
                ('state_reason', models.TextField(blank=True, default='')),
                ('state', models.CharField(choices=[('queued', 'queued'), ('running', 'running'), ('failed', 'failed'), ('skipped', 'skipped'), ('cancelled', 'cancelled'), ('succeeded', 'succeeded')], default='queued', max_length=12)),
                ('position', models.PositiveSmallIntegerField()),
                ('label', models.CharField(max_length=300)),
                ('changes', models.JSONField(default=list)),
                ('arguments', models.JSONField(default=list)),
                ('quality', models.JSONField(default=dict)),
                ('start_seconds', models.FloatField(null=True)),
                ('truth', models.JSONField(default=dict)),
                ('refused_at', models.DateTimeField(null=True)),
                ('started_at', models.DateTimeField(null=True)),
                ('finished_at', models.DateTimeField(null=True)),
                ('benchmark', models.OneToOneField(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='trial', to='benchmarks.benchmark')),
                ('copy', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='catalog.copy')),
                ('instance', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='deployments.instance')),
                ('job', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='jobs.job')),
                ('spec', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='deployments.spec')),
                ('study', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='trials', to='studies.study')),
            ],
            options={
                'ordering': ['study', 'position'],
                'constraints': [models.UniqueConstraint(fields=('study', 'position'), name='one_trial_per_position')],
            },
        ),
    ]
