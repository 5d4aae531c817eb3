import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('access', '0002_default_team'),
        ('access', '__first__'),
        ('deployments', '0007_attempt_log_removed'),
        ('fleet', '0005_host_labels'),
    ]

    operations = [
        migrations.CreateModel(
            name='Position',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('last_change', models.BigIntegerField(default=0)),
            ],
        ),
        migrations.CreateModel(
            name='Incident',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('state_since', models.DateTimeField(default=django.utils.timezone.now)),
                ('state_reason', models.TextField(blank=True, default='')),
                ('state', models.CharField(choices=[('open', 'open'), ('closed', 'over')], default='open', max_length=12)),
                ('name', models.CharField(max_length=120)),
                ('about', models.JSONField(default=dict)),
                ('code', models.CharField(blank=True, max_length=60)),
                ('title', models.CharField(blank=True, max_length=200)),
                ('cause', models.TextField(blank=True)),
                ('evidence', models.JSONField(default=list)),
                ('changed', models.JSONField(default=list)),
                ('impact', models.TextField(blank=True)),
                ('served', models.BooleanField(default=True)),
                ('opened_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('well_since', models.DateTimeField(null=True)),
                ('closed_at', models.DateTimeField(null=True)),
                ('deployment', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='incidents', to='deployments.deployment')),
                ('host', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='incidents', to='fleet.host')),
                ('team', models.ForeignKey(default=1, on_delete=django.db.models.deletion.PROTECT, to='access.team')),
            ],
            options={
                'ordering': ['-opened_at', '-pk'],
                'indexes': [models.Index(fields=['state', '-opened_at'], name='oncall_inci_state_6f6054_idx')],
                'constraints': [models.UniqueConstraint(condition=models.Q(('deployment__isnull', False), ('state', 'open')), fields=('deployment', 'code'), name='one_open_incident_per_deployment_and_cause'), models.UniqueConstraint(condition=models.Q(('deployment__isnull', True), ('host__isnull', False), ('state', 'open')), fields=('host', 'code'), name='one_open_incident_per_host_and_cause')],
            },
        ),
        migrations.CreateModel(
            name='Note',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('author_name', models.CharField(max_length=150)),
                ('text', models.TextField()),
                ('at', models.DateTimeField(default=django.utils.timezone.now)),
                ('author', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('incident', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='notes', to='oncall.incident')),
            ],
            options={
                'ordering': ['at', 'pk'],
            },
        ),
    ]
