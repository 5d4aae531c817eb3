import django.core.validators
import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models


class Migration(migrations.Migration):

    replaces = [
        ('fleet', '0001_initial'),
        ('fleet', '0002_engine_schemas'),
        ('fleet', '0003_host_upkeep'),
        ('fleet', '0004_inventory'),
        ('fleet', '0005_host_labels'),
    ]

    initial = True

    dependencies = [
        ('access', '0001_squashed_0002_default_team'),
    ]

    operations = [
        migrations.CreateModel(
            name='EngineSchema',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('sha256', models.CharField(max_length=64, unique=True)),
                ('version', models.CharField(max_length=40)),
                ('content', models.JSONField(default=dict)),
                ('received_at', models.DateTimeField(default=django.utils.timezone.now)),
            ],
        ),
        migrations.CreateModel(
            name='Host',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('state_since', models.DateTimeField(default=django.utils.timezone.now)),
                ('state_reason', models.TextField(blank=True, default='')),
                ('name', models.CharField(max_length=32, unique=True, validators=[django.core.validators.RegexValidator('^[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?$', 'Use lower-case letters, digits and inner hyphens, 32 at most.')])),
                ('public_key', models.CharField(blank=True, max_length=64)),
                ('redis_password_sha256', models.CharField(blank=True, max_length=64)),
                ('credentials', models.PositiveIntegerField(default=0)),
                ('next_password', models.TextField(blank=True)),
                ('next_key', models.BooleanField(default=False)),
                ('join_token_sha256', models.CharField(blank=True, max_length=64)),
                ('join_token_expires_at', models.DateTimeField(null=True)),
                ('state', models.CharField(choices=[('accepting', 'takes new work'), ('paused', 'paused'), ('draining', 'draining')], default='accepting', max_length=12)),
                ('labels', models.JSONField(default=dict)),
                ('port_first', models.PositiveIntegerField(default=18000)),
                ('port_last', models.PositiveIntegerField(default=18999)),
                ('agent_version', models.CharField(blank=True, max_length=40)),
                ('contract', models.PositiveIntegerField(null=True)),
                ('agent_boot', models.UUIDField(null=True)),
                ('last_seen_at', models.DateTimeField(null=True)),
                ('online_since', models.DateTimeField(null=True)),
                ('clock_skew_seconds', models.FloatField(null=True)),
                ('vitals', models.JSONField(default=dict)),
                ('facts', models.JSONField(default=dict)),
                ('gpu_count', models.PositiveIntegerField(default=0)),
                ('memory_free', models.BigIntegerField(null=True)),
                ('device_groups', models.JSONField(default=list)),
                ('lost_devices', models.PositiveIntegerField(default=0)),
                ('environment_failures', models.PositiveIntegerField(default=0)),
                ('environment_warnings', models.PositiveIntegerField(default=0)),
                ('running_steps', models.JSONField(default=list)),
                ('epoch', models.PositiveIntegerField(default=1)),
                ('generation', models.PositiveIntegerField(default=0)),
                ('reflected_epoch', models.PositiveIntegerField(default=0)),
                ('reflected_generation', models.PositiveIntegerField(default=0)),
                ('unknown_instances', models.JSONField(default=list)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('team', models.ForeignKey(default=1, on_delete=django.db.models.deletion.PROTECT, to='access.team')),
            ],
            options={
                'ordering': ['name'],
            },
        ),
        migrations.CreateModel(
            name='UnreadReport',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('received_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('content', models.TextField()),
                ('problem', models.TextField()),
                ('host', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='unread_reports', to='fleet.host')),
            ],
        ),
        migrations.CreateModel(
            name='Engine',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('key', models.CharField(max_length=80)),
                ('distribution', models.CharField(max_length=40)),
                ('version', models.CharField(max_length=40)),
                ('platform', models.CharField(max_length=20)),
                ('path', models.CharField(max_length=400)),
                ('size_bytes', models.BigIntegerField(default=0)),
                ('details', models.JSONField(default=dict)),
                ('present', models.BooleanField(default=True)),
                ('seen_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('schema', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='engines', to='fleet.engineschema')),
                ('host', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='engines', to='fleet.host')),
            ],
            options={
                'ordering': ['host', 'distribution', 'version'],
                'constraints': [models.UniqueConstraint(fields=('host', 'key'), name='one_engine_per_key')],
            },
        ),
        migrations.CreateModel(
            name='Device',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('kind', models.CharField(choices=[('cpu', 'CPU'), ('gpu', 'GPU')], max_length=8)),
                ('index', models.PositiveIntegerField()),
                ('uuid', models.CharField(max_length=80)),
                ('name', models.CharField(max_length=120)),
                ('memory_total', models.BigIntegerField()),
                ('memory_free', models.BigIntegerField()),
                ('details', models.JSONField(default=dict)),
                ('divided', models.BooleanField(default=False)),
                ('lost_at', models.DateTimeField(null=True)),
                ('lost_reason', models.TextField(blank=True, default='')),
                ('host', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='devices', to='fleet.host')),
            ],
            options={
                'ordering': ['host', 'kind', 'index'],
                'constraints': [models.UniqueConstraint(fields=('host', 'uuid'), name='one_device_per_uuid')],
            },
        ),
        migrations.CreateModel(
            name='ReportCursor',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('outbox', models.UUIDField()),
                ('number', models.BigIntegerField(default=0)),
                ('updated_at', models.DateTimeField(auto_now=True)),
                ('host', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='report_cursors', to='fleet.host')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('host', 'outbox'), name='one_cursor_per_outbox')],
            },
        ),
    ]
