import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('access', '0002_default_team'),
        ('access', '__first__'),
        ('deployments', '0003_form_and_launches'),
        ('fleet', '0002_engine_schemas'),
    ]

    operations = [
        migrations.CreateModel(
            name='Alert',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('state_since', models.DateTimeField(default=django.utils.timezone.now)),
                ('state_reason', models.TextField(blank=True, default='')),
                ('state', models.CharField(choices=[('open', 'open'), ('acknowledged', 'someone is at it'), ('closed', 'over')], default='open', max_length=12)),
                ('subject', models.CharField(max_length=120)),
                ('name', models.CharField(max_length=200)),
                ('summary', models.TextField()),
                ('cause', models.TextField(blank=True)),
                ('severity', models.CharField(choices=[('info', 'info'), ('warning', 'warning'), ('critical', 'critical')], max_length=10)),
                ('value', models.FloatField()),
                ('worst', models.FloatField()),
                ('labels', models.JSONField(default=dict)),
                ('url', models.CharField(blank=True, max_length=200)),
                ('opened_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('closed_at', models.DateTimeField(null=True)),
                ('escalated', models.BooleanField(default=False)),
                ('silenced', models.BooleanField(default=False)),
                ('acknowledged_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('deployment', models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='alerts', to='deployments.deployment')),
                ('host', models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='alerts', to='fleet.host')),
                ('team', models.ForeignKey(default=1, on_delete=django.db.models.deletion.PROTECT, to='access.team')),
            ],
            options={
                'ordering': ['-opened_at', '-pk'],
                'indexes': [models.Index(fields=['team', 'state'], name='alerts_aler_team_id_e96393_idx')],
            },
        ),
        migrations.CreateModel(
            name='Channel',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=80)),
                ('kind', models.CharField(choices=[('email', 'E-mail'), ('webhook', 'Webhook, signed'), ('slack', 'Slack'), ('feishu', 'Feishu / Lark'), ('dingtalk', 'DingTalk'), ('wecom', 'WeCom'), ('pagerduty', 'PagerDuty'), ('alertmanager', 'Alertmanager')], max_length=20)),
                ('settings', models.JSONField(default=dict)),
                ('secret', models.TextField(blank=True)),
                ('severity', models.CharField(choices=[('info', 'info'), ('warning', 'warning'), ('critical', 'critical')], default='warning', max_length=10)),
                ('for_escalations', models.BooleanField(default=False)),
                ('enabled', models.BooleanField(default=True)),
                ('failing_since', models.DateTimeField(null=True)),
                ('last_error', models.TextField(blank=True)),
                ('last_sent_at', models.DateTimeField(null=True)),
                ('team', models.ForeignKey(default=1, on_delete=django.db.models.deletion.PROTECT, to='access.team')),
            ],
            options={
                'ordering': ['name'],
                'constraints': [models.UniqueConstraint(fields=('team', 'name'), name='one_channel_per_name')],
            },
        ),
        migrations.CreateModel(
            name='Delivery',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('event', models.CharField(max_length=12)),
                ('state', models.CharField(default='waiting', max_length=8)),
                ('attempts', models.PositiveSmallIntegerField(default=0)),
                ('due_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('claimed_at', models.DateTimeField(null=True)),
                ('sent_at', models.DateTimeField(null=True)),
                ('error', models.TextField(blank=True)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('alerts', models.ManyToManyField(related_name='deliveries', to='alerts.alert')),
                ('channel', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='deliveries', to='alerts.channel')),
            ],
            options={
                'ordering': ['-pk'],
                'indexes': [models.Index(fields=['state', 'due_at'], name='alerts_deli_state_8c7614_idx')],
            },
        ),
        migrations.CreateModel(
            name='Rule',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('key', models.CharField(blank=True, max_length=60)),
                ('name', models.CharField(max_length=120)),
                ('condition', models.CharField(max_length=40)),
                ('threshold', models.FloatField()),
                ('clear_threshold', models.FloatField(null=True)),
                ('for_seconds', models.PositiveIntegerField(default=60)),
                ('clear_seconds', models.PositiveIntegerField(default=60)),
                ('severity', models.CharField(choices=[('info', 'info'), ('warning', 'warning'), ('critical', 'critical')], default='warning', max_length=10)),
                ('labels', models.JSONField(default=dict)),
                ('escalate_seconds', models.PositiveIntegerField(default=900)),
                ('enabled', models.BooleanField(default=True)),
                ('changed_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('deployment', models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='alert_rules', to='deployments.deployment')),
                ('team', models.ForeignKey(default=1, on_delete=django.db.models.deletion.PROTECT, to='access.team')),
            ],
            options={
                'ordering': ['name', 'pk'],
                'constraints': [models.UniqueConstraint(condition=models.Q(('key', ''), _negated=True), fields=('team', 'key'), name='one_rule_per_key_and_team')],
            },
        ),
        migrations.CreateModel(
            name='Breach',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('subject', models.CharField(max_length=120)),
                ('since', models.DateTimeField(default=django.utils.timezone.now)),
                ('back_since', models.DateTimeField(null=True)),
                ('rule', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='breaches', to='alerts.rule')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('rule', 'subject'), name='one_breach_per_subject')],
            },
        ),
        migrations.AddField(
            model_name='alert',
            name='rule',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='alerts', to='alerts.rule'),
        ),
        migrations.CreateModel(
            name='Silence',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('begins_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('ends_at', models.DateTimeField()),
                ('reason', models.TextField()),
                ('author', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('deployment', models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='silences', to='deployments.deployment')),
                ('host', models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='silences', to='fleet.host')),
                ('rule', models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='silences', to='alerts.rule')),
                ('team', models.ForeignKey(default=1, on_delete=django.db.models.deletion.PROTECT, to='access.team')),
            ],
            options={
                'ordering': ['-begins_at'],
            },
        ),
        migrations.AddConstraint(
            model_name='alert',
            constraint=models.UniqueConstraint(condition=models.Q(('state', 'closed'), _negated=True), fields=('rule', 'subject'), name='one_living_alert_per_subject'),
        ),
    ]
