import django.core.validators
import django.db.models.deletion
import django.utils.timezone
import uuid
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    replaces = [
        ('deployments', '0001_initial'),
        ('deployments', '0002_validation_and_golden_answers'),
        ('deployments', '0003_form_and_launches'),
        ('deployments', '0004_brake'),
        ('deployments', '0005_surroundings_of_attempts'),
        ('deployments', '0006_claims'),
        ('deployments', '0007_attempt_log_removed'),
        ('deployments', '0008_spec_gate'),
        ('deployments', '0009_deployment_for_study'),
        ('deployments', '0010_adapters'),
    ]

    initial = True

    dependencies = [
        ('access', '0001_squashed_0002_default_team'),
        ('access', '__first__'),
        ('catalog', '0001_squashed_0004_revision_shape'),
        ('fleet', '0001_squashed_0005_host_labels'),
    ]

    operations = [
        migrations.CreateModel(
            name='Brake',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('opened_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('reason', models.TextField()),
                ('bad', models.PositiveIntegerField()),
                ('total', models.PositiveIntegerField()),
                ('over_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('closed_at', models.DateTimeField(null=True)),
                ('close_reason', models.TextField(blank=True)),
                ('closed_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['-opened_at'],
            },
        ),
        migrations.CreateModel(
            name='Deployment',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('state_since', models.DateTimeField(default=django.utils.timezone.now)),
                ('state_reason', models.TextField(blank=True, default='')),
                ('state', models.CharField(choices=[('draft', 'draft'), ('deploying', 'deploying'), ('serving', 'serving'), ('degraded', 'degraded'), ('failed', 'failed'), ('stopping', 'stopping'), ('stopped', 'stopped')], default='draft', max_length=12)),
                ('name', models.CharField(max_length=62, unique=True, validators=[django.core.validators.RegexValidator('^[a-z0-9](?:[a-z0-9._-]{0,60}[a-z0-9])?$', 'Use lower-case letters, digits, dots, hyphens and underscores, 62 at most.')])),
                ('api_key', models.TextField()),
                ('notes', models.TextField(blank=True)),
                ('for_study', models.BooleanField(default=False)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('created_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('team', models.ForeignKey(default=1, on_delete=django.db.models.deletion.PROTECT, to='access.team')),
            ],
            options={
                'ordering': ['name'],
                'indexes': [models.Index(fields=['state'], name='deployments_state_252e24_idx')],
            },
        ),
        migrations.CreateModel(
            name='Adapter',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=128)),
                ('load', models.PositiveBigIntegerField()),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('created_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('revision', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='adapters', to='catalog.revision')),
                ('deployment', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='adapters', to='deployments.deployment')),
            ],
            options={
                'ordering': ['name'],
                'constraints': [models.UniqueConstraint(fields=('deployment', 'name'), name='one_adapter_per_name')],
            },
        ),
        migrations.CreateModel(
            name='DeviceKind',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('key', models.CharField(max_length=40, unique=True)),
                ('facts', models.JSONField(default=dict)),
                ('changed_at', models.DateTimeField(auto_now=True)),
                ('changed_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['key'],
            },
        ),
        migrations.CreateModel(
            name='Draft',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('key', models.UUIDField(unique=True)),
                ('fields', models.JSONField(default=dict)),
                ('saved_at', models.DateTimeField(auto_now=True)),
                ('deployment', models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='deployments.deployment')),
                ('person', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['-saved_at'],
            },
        ),
        migrations.CreateModel(
            name='GoldenAnswer',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('engine', models.CharField(max_length=80)),
                ('question_sha256', models.CharField(max_length=64)),
                ('question', models.TextField()),
                ('answer', models.TextField()),
                ('recorded_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('revision', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='golden_answers', to='catalog.revision')),
            ],
            options={
                'ordering': ['-recorded_at'],
                'constraints': [models.UniqueConstraint(fields=('revision', 'engine', 'question_sha256'), name='one_golden_answer')],
            },
        ),
        migrations.CreateModel(
            name='Instance',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('state_since', models.DateTimeField(default=django.utils.timezone.now)),
                ('state_reason', models.TextField(blank=True, default='')),
                ('state', models.CharField(choices=[('starting', 'starting'), ('loading', 'loading'), ('validating', 'validating'), ('warming', 'warming up'), ('ready', 'ready'), ('unhealthy', 'unhealthy'), ('restarting', 'restarting'), ('draining', 'draining'), ('stopping', 'stopping'), ('stopped', 'stopped'), ('crashed', 'crashed')], default='starting', max_length=12)),
                ('uuid', models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                ('number', models.PositiveIntegerField()),
                ('port', models.PositiveIntegerField(null=True)),
                ('ordered', models.BooleanField(default=False)),
                ('run', models.BooleanField(default=True)),
                ('start', models.PositiveIntegerField(default=1)),
                ('bring_up', models.CharField(choices=[('job', 'job'), ('agent', 'agent')], default='job', max_length=5)),
                ('restarts', models.PositiveIntegerField(default=0)),
                ('failure', models.JSONField(null=True)),
                ('observed_at', models.DateTimeField(null=True)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('deployment', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='instances', to='deployments.deployment')),
                ('host', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='instances', to='fleet.host')),
                ('own_copy', models.ForeignKey(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='catalog.copy')),
                ('own_engine', models.ForeignKey(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='fleet.engine')),
            ],
            options={
                'ordering': ['deployment', 'number'],
                'indexes': [models.Index(fields=['state', 'host'], name='deployments_state_67bc60_idx')],
                'constraints': [models.UniqueConstraint(fields=('deployment', 'number'), name='one_instance_per_number'), models.UniqueConstraint(condition=models.Q(('port__isnull', False), models.Q(('state__in', ['stopped', 'crashed']), _negated=True)), fields=('host', 'port'), name='one_live_instance_per_port')],
            },
        ),
        migrations.CreateModel(
            name='Claim',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('nbytes', models.BigIntegerField()),
                ('why', models.TextField(blank=True)),
                ('made_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('device', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='claims', to='fleet.device')),
                ('instance', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='claims', to='deployments.instance')),
            ],
            options={
                'ordering': ['instance', 'device'],
                'constraints': [models.UniqueConstraint(fields=('instance', 'device'), name='one_claim_per_device')],
            },
        ),
        migrations.CreateModel(
            name='Attempt',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('number', models.PositiveIntegerField()),
                ('pid', models.PositiveIntegerField(null=True)),
                ('argv', models.JSONField(default=list)),
                ('environment', models.JSONField(default=dict)),
                ('started_at', models.DateTimeField(null=True)),
                ('ended_at', models.DateTimeField(null=True)),
                ('exit_code', models.IntegerField(null=True)),
                ('asked', models.BooleanField(default=False)),
                ('diagnosis', models.JSONField(default=dict)),
                ('validation', models.JSONField(default=dict)),
                ('surroundings', models.JSONField(default=dict)),
                ('log_bytes', models.BigIntegerField(default=0)),
                ('log_host_offset', models.BigIntegerField(default=0)),
                ('log_complete', models.BooleanField(default=False)),
                ('log_removed_at', models.DateTimeField(null=True)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('instance', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='attempts', to='deployments.instance')),
            ],
            options={
                'ordering': ['instance', '-number'],
                'constraints': [models.UniqueConstraint(fields=('instance', 'number'), name='one_attempt_per_number')],
            },
        ),
        migrations.CreateModel(
            name='AdapterLoad',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('state_since', models.DateTimeField(default=django.utils.timezone.now)),
                ('state_reason', models.TextField(blank=True, default='')),
                ('state', models.CharField(choices=[('queued', 'queued'), ('loading', 'loading'), ('loaded', 'loaded'), ('failed', 'failed')], default='queued', max_length=12)),
                ('attempt', models.PositiveIntegerField(null=True)),
                ('failure', models.JSONField(null=True)),
                ('adapter', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='loads', to='deployments.adapter')),
                ('instance', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='adapter_loads', to='deployments.instance')),
            ],
            options={
                'ordering': ['adapter', 'instance'],
                'constraints': [models.UniqueConstraint(fields=('adapter', 'instance'), name='one_load_per_instance')],
            },
        ),
        migrations.CreateModel(
            name='Launch',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('deployment_name', models.CharField(max_length=62)),
                ('spec_number', models.PositiveIntegerField()),
                ('device', models.CharField(max_length=120)),
                ('platform', models.CharField(max_length=20)),
                ('engine_version', models.CharField(max_length=40)),
                ('batched_tokens', models.PositiveIntegerField()),
                ('prediction', models.JSONField(default=dict)),
                ('truth', models.JSONField(default=dict)),
                ('residual_bytes', models.BigIntegerField(null=True)),
                ('at', models.DateTimeField(default=django.utils.timezone.now)),
                ('attempt', models.OneToOneField(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='launch', to='deployments.attempt')),
                ('revision', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='launches', to='catalog.revision')),
            ],
            options={
                'ordering': ['-pk'],
                'indexes': [models.Index(fields=['revision', 'device', 'batched_tokens', 'engine_version'], name='deployments_revisio_2df4fd_idx')],
            },
        ),
        migrations.CreateModel(
            name='Spec',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('number', models.PositiveIntegerField()),
                ('devices', models.JSONField(default=list)),
                ('placement', models.JSONField(default=dict)),
                ('replicas', models.PositiveIntegerField(default=1)),
                ('port', models.PositiveIntegerField(null=True)),
                ('arguments', models.JSONField(default=list)),
                ('environment', models.JSONField(default=dict)),
                ('probe', models.JSONField(default=dict)),
                ('restart', models.JSONField(default=dict)),
                ('gate', models.JSONField(default=dict)),
                ('start_deadline_seconds', models.FloatField(default=1800)),
                ('reason', models.TextField(blank=True)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('author', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('copy', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='specs', to='catalog.copy')),
                ('deployment', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='specs', to='deployments.deployment')),
                ('engine', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='specs', to='fleet.engine')),
                ('host', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='specs', to='fleet.host')),
            ],
            options={
                'ordering': ['deployment', '-number'],
                'constraints': [models.UniqueConstraint(fields=('deployment', 'number'), name='one_spec_per_number')],
            },
        ),
        migrations.AddField(
            model_name='instance',
            name='spec',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='instances', to='deployments.spec'),
        ),
        migrations.AddField(
            model_name='deployment',
            name='current_spec',
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='deployments.spec'),
        ),
    ]
