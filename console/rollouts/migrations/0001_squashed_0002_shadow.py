import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    replaces = [
        ('rollouts', '0001_rollouts'),
        ('rollouts', '0002_shadow'),
    ]

    initial = True

    dependencies = [
        ('access', '0001_squashed_0002_default_team'),
        ('access', '__first__'),
        ('deployments', '0001_squashed_0010_adapters'),
        ('jobs', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='Rollout',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('state_since', models.DateTimeField(default=django.utils.timezone.now)),
                ('state_reason', models.TextField(blank=True, default='')),
                ('state', models.CharField(choices=[('preparing', 'is being prepared'), ('shadowing', 'copying requests'), ('shifting', 'shifting requests'), ('held', 'on hold'), ('draining', 'draining'), ('rolling_back', 'rolling back'), ('succeeded', 'succeeded'), ('rolled_back', 'rolled back'), ('aborted', 'aborted'), ('failed', 'failed')], default='preparing', max_length=12)),
                ('plan', models.JSONField(default=dict)),
                ('ended_by_person', models.BooleanField(default=False)),
                ('finding', models.JSONField(default=dict)),
                ('reason', models.TextField(blank=True)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('ended_at', models.DateTimeField(null=True)),
                ('created_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('deployment', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='rollouts', to='deployments.deployment')),
                ('job', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='jobs.job')),
                ('new_spec', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='rollouts', to='deployments.spec')),
                ('old_spec', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='deployments.spec')),
                ('stop_job', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='jobs.job')),
                ('team', models.ForeignKey(default=1, on_delete=django.db.models.deletion.PROTECT, to='access.team')),
            ],
            options={
                'ordering': ['-pk'],
                'constraints': [models.UniqueConstraint(condition=models.Q(('state__in', ('preparing', 'shadowing', 'shifting', 'held', 'draining', 'rolling_back'))), fields=('deployment',), name='one_live_rollout_per_deployment')],
            },
        ),
        migrations.CreateModel(
            name='Probe',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('side', models.CharField(choices=[('old', 'old'), ('new', 'new')], max_length=3)),
                ('is_validation', models.BooleanField(default=False)),
                ('at', models.DateTimeField()),
                ('ttft_ms', models.FloatField(null=True)),
                ('pace_ms', models.FloatField(null=True)),
                ('finish_reason', models.CharField(blank=True, max_length=40)),
                ('trouble', models.CharField(blank=True, max_length=8)),
                ('detail', models.TextField(blank=True)),
                ('instance', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='deployments.instance')),
                ('rollout', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='probes', to='rollouts.rollout')),
            ],
            options={
                'ordering': ['pk'],
            },
        ),
        migrations.CreateModel(
            name='Happening',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField(default=django.utils.timezone.now)),
                ('icon', models.CharField(max_length=30)),
                ('text', models.TextField()),
                ('reason', models.TextField(blank=True)),
                ('actor', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('rollout', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='happenings', to='rollouts.rollout')),
            ],
            options={
                'ordering': ['-pk'],
            },
        ),
        migrations.CreateModel(
            name='RolloutStep',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('position', models.PositiveSmallIntegerField()),
                ('weight', models.PositiveSmallIntegerField()),
                ('shadow_percent', models.PositiveSmallIntegerField(default=0)),
                ('hold_seconds', models.FloatField()),
                ('began_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('patient_since', models.DateTimeField(default=django.utils.timezone.now)),
                ('ended_at', models.DateTimeField(null=True)),
                ('first_request', models.BigIntegerField(default=0)),
                ('looks', models.PositiveSmallIntegerField(default=0)),
                ('verdict', models.CharField(default='undecided', max_length=16)),
                ('measures', models.JSONField(default=list)),
                ('figure', models.JSONField(default=dict)),
                ('passed_by', models.CharField(blank=True, max_length=8)),
                ('rollout', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='steps', to='rollouts.rollout')),
            ],
            options={
                'ordering': ['rollout', 'position'],
                'constraints': [models.UniqueConstraint(fields=('rollout', 'position'), name='one_rollout_step_per_position')],
            },
        ),
    ]
