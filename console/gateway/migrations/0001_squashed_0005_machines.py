import django.core.validators
import django.db.models.deletion
import django.db.models.functions.text
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    replaces = [
        ('gateway', '0001_initial'),
        ('gateway', '0002_canary'),
        ('gateway', '0003_careful_reading'),
        ('gateway', '0004_shadow'),
        ('gateway', '0005_machines'),
    ]

    initial = True

    dependencies = [
        ('access', '0001_squashed_0002_default_team'),
        ('access', '__first__'),
        ('deployments', '0001_squashed_0010_adapters'),
    ]

    operations = [
        migrations.CreateModel(
            name='LogCursor',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('file', models.CharField(max_length=80, unique=True)),
                ('offset', models.BigIntegerField(default=0)),
                ('details', models.JSONField(default=dict)),
            ],
        ),
        migrations.CreateModel(
            name='GatewayMachine',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=32, unique=True, validators=[django.core.validators.RegexValidator('^[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?$', 'Use lower-case letters, digits and inner hyphens, 32 at most.')])),
                ('public_key', models.CharField(blank=True, max_length=64)),
                ('redis_password_sha256', models.CharField(blank=True, max_length=64)),
                ('credentials', models.PositiveIntegerField(default=0)),
                ('next_password', models.TextField(blank=True)),
                ('next_key', models.BooleanField(default=False)),
                ('join_token_sha256', models.CharField(blank=True, max_length=64)),
                ('join_token_expires_at', models.DateTimeField(null=True)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('joined_at', models.DateTimeField(null=True)),
                ('last_seen_at', models.DateTimeField(null=True)),
                ('leaving_since', models.DateTimeField(null=True)),
                ('team', models.ForeignKey(default=1, on_delete=django.db.models.deletion.PROTECT, to='access.team')),
            ],
            options={
                'ordering': ['name'],
            },
        ),
        migrations.CreateModel(
            name='Route',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('requests_per_minute', models.PositiveIntegerField(blank=True, null=True, validators=[django.core.validators.MinValueValidator(1)])),
                ('tokens_per_minute', models.PositiveIntegerField(blank=True, null=True, validators=[django.core.validators.MinValueValidator(1)])),
                ('concurrency', models.PositiveIntegerField(blank=True, null=True, validators=[django.core.validators.MinValueValidator(1)])),
                ('name', models.CharField(max_length=128, unique=True, validators=[django.core.validators.RegexValidator('^[A-Za-z0-9][A-Za-z0-9._:/-]{0,126}[A-Za-z0-9]$|^[A-Za-z0-9]$', 'Use letters, digits and inner . _ : / -, 128 at most, such as my-model or org/model-8b.')])),
                ('enabled', models.BooleanField(default=True)),
                ('notes', models.TextField(blank=True)),
                ('balance', models.CharField(choices=[('leastconn', 'to the instance with the fewest requests'), ('session', 'by session: the same X-Session-Id meets the same instance'), ('prefix', 'by system prompt: the same one meets the same instance, whose cache knows it')], default='leastconn', max_length=10)),
                ('context_tokens', models.PositiveIntegerField(blank=True, null=True)),
                ('output_cap', models.PositiveIntegerField(blank=True, null=True)),
                ('output_assumed', models.PositiveIntegerField(default=512)),
                ('long_tokens', models.PositiveIntegerField(blank=True, null=True)),
                ('exact_context', models.BooleanField(default=False)),
                ('control_characters', models.CharField(choices=[('pass', 'go on as they are'), ('blank', 'become blanks'), ('refuse', 'are refused')], default='pass', max_length=10)),
                ('deadline_seconds', models.PositiveIntegerField(blank=True, null=True, validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(86400)])),
                ('queue_limit', models.PositiveIntegerField(default=256, validators=[django.core.validators.MinValueValidator(1)])),
                ('queue_seconds', models.PositiveIntegerField(default=30, validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(3600)])),
                ('silence_seconds', models.PositiveIntegerField(default=600, validators=[django.core.validators.MinValueValidator(5), django.core.validators.MaxValueValidator(86400)])),
                ('in_flight_each', models.PositiveIntegerField(default=256, validators=[django.core.validators.MinValueValidator(1)])),
                ('shadow_allowed_at', models.DateTimeField(blank=True, null=True)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('created_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('fallback', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='fallback_for', to='gateway.route')),
                ('shadow_allowed_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('team', models.ForeignKey(default=1, on_delete=django.db.models.deletion.PROTECT, to='access.team')),
            ],
            options={
                'ordering': ['name'],
            },
        ),
        migrations.CreateModel(
            name='Key',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('requests_per_minute', models.PositiveIntegerField(blank=True, null=True, validators=[django.core.validators.MinValueValidator(1)])),
                ('tokens_per_minute', models.PositiveIntegerField(blank=True, null=True, validators=[django.core.validators.MinValueValidator(1)])),
                ('concurrency', models.PositiveIntegerField(blank=True, null=True, validators=[django.core.validators.MinValueValidator(1)])),
                ('name', models.CharField(max_length=80)),
                ('shown', models.CharField(max_length=24)),
                ('sha256', models.CharField(max_length=64, unique=True)),
                ('all_routes', models.BooleanField(default=True)),
                ('daily_tokens', models.PositiveBigIntegerField(blank=True, null=True)),
                ('expires_at', models.DateTimeField(blank=True, null=True)),
                ('revoked_at', models.DateTimeField(null=True)),
                ('last_used_at', models.DateTimeField(null=True)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('created_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('owner', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='gateway_keys', to=settings.AUTH_USER_MODEL)),
                ('replaces', models.OneToOneField(editable=False, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='replaced_by', to='gateway.key')),
                ('team', models.ForeignKey(default=1, on_delete=django.db.models.deletion.PROTECT, to='access.team')),
                ('routes', models.ManyToManyField(blank=True, related_name='keys', to='gateway.route')),
            ],
            options={
                'ordering': ['name', '-pk'],
                'indexes': [models.Index(fields=['revoked_at'], name='gateway_key_revoked_214a15_idx')],
            },
        ),
        migrations.CreateModel(
            name='Alias',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=128, unique=True, validators=[django.core.validators.RegexValidator('^[A-Za-z0-9][A-Za-z0-9._:/-]{0,126}[A-Za-z0-9]$|^[A-Za-z0-9]$', 'Use letters, digits and inner . _ : / -, 128 at most, such as my-model or org/model-8b.')])),
                ('route', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='aliases', to='gateway.route')),
            ],
            options={
                'ordering': ['name'],
            },
        ),
        migrations.CreateModel(
            name='Target',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('weight', models.PositiveSmallIntegerField(default=100, validators=[django.core.validators.MaxValueValidator(100)])),
                ('version', models.CharField(blank=True, max_length=40, validators=[django.core.validators.RegexValidator('^[A-Za-z0-9._-]{1,40}$', 'Use letters, digits, dots, hyphens and underscores.')])),
                ('is_long_lane', models.BooleanField(default=False)),
                ('deployment', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='route_targets', to='deployments.deployment')),
                ('route', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='targets', to='gateway.route')),
            ],
            options={
                'ordering': ['route', 'pk'],
                'constraints': [models.UniqueConstraint(fields=('route', 'deployment'), name='one_target_per_deployment')],
            },
        ),
        migrations.CreateModel(
            name='Canary',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('share', models.PositiveSmallIntegerField(default=0, validators=[django.core.validators.MaxValueValidator(100)])),
                ('version', models.CharField(blank=True, max_length=40, validators=[django.core.validators.RegexValidator('^[A-Za-z0-9._-]{1,40}$', 'Use letters, digits, dots, hyphens and underscores.')])),
                ('shadow', models.PositiveSmallIntegerField(default=0, validators=[django.core.validators.MaxValueValidator(100)])),
                ('spec', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='canaries', to='deployments.spec')),
                ('target', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, related_name='canary', to='gateway.target')),
            ],
        ),
        migrations.CreateModel(
            name='TeamLimits',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('requests_per_minute', models.PositiveIntegerField(blank=True, null=True, validators=[django.core.validators.MinValueValidator(1)])),
                ('tokens_per_minute', models.PositiveIntegerField(blank=True, null=True, validators=[django.core.validators.MinValueValidator(1)])),
                ('concurrency', models.PositiveIntegerField(blank=True, null=True, validators=[django.core.validators.MinValueValidator(1)])),
                ('daily_tokens', models.PositiveBigIntegerField(blank=True, null=True)),
                ('team', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, related_name='gateway_limits', to='access.team')),
            ],
            options={
                'abstract': False,
            },
        ),
        migrations.CreateModel(
            name='UsageDay',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('day', models.DateField()),
                ('route', models.CharField(max_length=128)),
                ('deployment', models.CharField(blank=True, max_length=62)),
                ('requests', models.PositiveBigIntegerField(default=0)),
                ('refused', models.PositiveBigIntegerField(default=0)),
                ('errors', models.PositiveBigIntegerField(default=0)),
                ('prompt_tokens', models.PositiveBigIntegerField(default=0)),
                ('output_tokens', models.PositiveBigIntegerField(default=0)),
                ('key', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='usage', to='gateway.key')),
                ('team', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, to='access.team')),
            ],
            options={
                'indexes': [models.Index(fields=['team', 'day'], name='gateway_usa_team_id_c163cc_idx')],
                'constraints': [models.UniqueConstraint(fields=('day', 'key', 'route', 'deployment'), name='one_usage_row_per_day')],
            },
        ),
        migrations.CreateModel(
            name='GatewayRequest',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('request_id', models.CharField(max_length=64)),
                ('at', models.DateTimeField()),
                ('path', models.CharField(max_length=200)),
                ('route', models.CharField(blank=True, max_length=128)),
                ('model', models.CharField(blank=True, max_length=200)),
                ('deployment', models.CharField(blank=True, max_length=62)),
                ('instance', models.PositiveBigIntegerField(null=True)),
                ('status', models.SmallIntegerField()),
                ('refusal', models.CharField(blank=True, max_length=60)),
                ('fallback', models.CharField(blank=True, max_length=62)),
                ('cost', models.PositiveIntegerField(null=True)),
                ('prompt_tokens', models.PositiveIntegerField(null=True)),
                ('output_tokens', models.PositiveIntegerField(null=True)),
                ('ttft_ms', models.PositiveIntegerField(null=True)),
                ('latency_ms', models.PositiveIntegerField(null=True)),
                ('queue_ms', models.PositiveIntegerField(null=True)),
                ('finish_reason', models.CharField(blank=True, max_length=40)),
                ('end', models.CharField(blank=True, max_length=4)),
                ('gateway', models.CharField(blank=True, max_length=32)),
                ('shadow', models.CharField(blank=True, max_length=8)),
                ('team', models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, to='access.team')),
                ('key', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, to='gateway.key')),
            ],
            options={
                'ordering': ['-pk'],
                'indexes': [models.Index(fields=['request_id'], name='gateway_gat_request_dea80c_idx'), models.Index(fields=['team', '-id'], name='gateway_gat_team_id_d22a27_idx')],
            },
        ),
        migrations.AddConstraint(
            model_name='target',
            constraint=models.UniqueConstraint(models.F('route'), django.db.models.functions.text.Lower('version'), condition=models.Q(('version', ''), _negated=True), name='one_target_per_version'),
        ),
    ]
