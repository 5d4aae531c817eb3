import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    replaces = [
        ('benchmarks', '0001_initial'),
        ('benchmarks', '0002_benchmark_quality'),
        ('benchmarks', '0003_endpoints'),
    ]

    initial = True

    dependencies = [
        ('access', '0001_squashed_0002_default_team'),
        ('access', '__first__'),
        ('catalog', '0001_squashed_0004_revision_shape'),
        ('deployments', '0001_squashed_0010_adapters'),
        ('fleet', '0001_squashed_0005_host_labels'),
        ('jobs', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='Dataset',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=120)),
                ('form', models.CharField(choices=[('prompts', 'prompts'), ('conversations', 'conversations (ShareGPT)')], max_length=14)),
                ('rows', models.JSONField(default=list)),
                ('found', models.PositiveIntegerField(default=0)),
                ('sha256', models.CharField(max_length=64)),
                ('uploaded_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('team', models.ForeignKey(default=1, on_delete=django.db.models.deletion.PROTECT, to='access.team')),
                ('uploaded_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['name'],
                'constraints': [models.UniqueConstraint(fields=('team', 'name'), name='one_dataset_per_name')],
            },
        ),
        migrations.CreateModel(
            name='Benchmark',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('state_since', models.DateTimeField(default=django.utils.timezone.now)),
                ('state_reason', models.TextField(blank=True, default='')),
                ('state', models.CharField(choices=[('queued', 'queued'), ('running', 'running'), ('failed', 'failed'), ('succeeded', 'succeeded'), ('cancelled', 'cancelled')], default='queued', max_length=12)),
                ('title', models.CharField(max_length=160)),
                ('origin', models.CharField(choices=[('person', 'asked for'), ('gate', 'gate'), ('study', 'study'), ('import', 'imported')], default='person', max_length=8)),
                ('step', models.PositiveBigIntegerField(null=True)),
                ('profile', models.CharField(max_length=20)),
                ('workload', models.JSONField(default=dict)),
                ('loads', models.JSONField(default=dict)),
                ('targets', models.JSONField(default=dict)),
                ('remote_url', models.CharField(blank=True, max_length=400)),
                ('remote_model', models.CharField(blank=True, max_length=300)),
                ('remote_key', models.TextField(blank=True)),
                ('subject', models.JSONField(default=dict)),
                ('result', models.JSONField(default=dict)),
                ('quality', models.JSONField(default=dict)),
                ('failure', models.JSONField(null=True)),
                ('notes', models.TextField(blank=True)),
                ('tags', models.JSONField(default=list)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('started_at', models.DateTimeField(null=True)),
                ('finished_at', models.DateTimeField(null=True)),
                ('deployment', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='benchmarks', to='deployments.deployment')),
                ('host', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='fleet.host')),
                ('instance', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='deployments.instance')),
                ('job', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='jobs.job')),
                ('requested_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('revision', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='catalog.revision')),
                ('team', models.ForeignKey(default=1, on_delete=django.db.models.deletion.PROTECT, to='access.team')),
                ('dataset', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='benchmarks.dataset')),
            ],
            options={
                'ordering': ['-pk'],
                'indexes': [models.Index(fields=['state', '-id'], name='benchmarks__state_079073_idx'), models.Index(fields=['deployment', '-id'], name='benchmarks__deploym_5ab01d_idx'), models.Index(fields=['revision', '-id'], name='benchmarks__revisio_e177de_idx')],
            },
        ),
        migrations.CreateModel(
            name='Endpoint',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=80)),
                ('url', models.CharField(max_length=400)),
                ('model', models.CharField(max_length=300)),
                ('key', models.TextField(blank=True)),
                ('allowed_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('allowed_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('team', models.ForeignKey(default=1, on_delete=django.db.models.deletion.PROTECT, to='access.team')),
            ],
            options={
                'ordering': ['name'],
                'constraints': [models.UniqueConstraint(fields=('team', 'name'), name='one_endpoint_per_name')],
            },
        ),
        migrations.CreateModel(
            name='Run',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('key', models.CharField(max_length=60)),
                ('by', models.CharField(max_length=12)),
                ('load', models.FloatField()),
                ('repeat', models.PositiveSmallIntegerField()),
                ('numbers', models.JSONField(null=True)),
                ('problem', models.TextField(blank=True)),
                ('requests', models.JSONField(default=list)),
                ('requests_left_out', models.PositiveIntegerField(default=0)),
                ('argv', models.JSONField(default=list)),
                ('host_load', models.JSONField(null=True)),
                ('raw', models.TextField(blank=True)),
                ('at', models.DateTimeField(default=django.utils.timezone.now)),
                ('benchmark', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='runs', to='benchmarks.benchmark')),
            ],
            options={
                'ordering': ['benchmark', 'by', 'load', 'repeat'],
                'constraints': [models.UniqueConstraint(fields=('benchmark', 'key'), name='one_run_per_key')],
            },
        ),
        migrations.CreateModel(
            name='Baseline',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('device', models.CharField(max_length=120)),
                ('profile_digest', models.CharField(max_length=64)),
                ('spec_class', models.CharField(blank=True, max_length=64)),
                ('engine_version', models.CharField(max_length=40)),
                ('chosen_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('chosen_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('revision', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='baselines', to='catalog.revision')),
                ('team', models.ForeignKey(default=1, on_delete=django.db.models.deletion.PROTECT, to='access.team')),
                ('benchmark', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='baseline_of', to='benchmarks.benchmark')),
            ],
            options={
                'ordering': ['-chosen_at'],
                'constraints': [models.UniqueConstraint(fields=('team', 'revision', 'device', 'profile_digest', 'spec_class', 'engine_version'), name='one_baseline_per_kind')],
            },
        ),
    ]
