import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models


SOURCES = [
    ("Hugging Face", "hub", "https://huggingface.co"),
    ("ModelScope", "modelscope", "https://www.modelscope.cn"),
]


def add(apps, schema_editor):
    """The public sources, so that a new console can fetch a model at once; people change or remove them."""
    source = apps.get_model("catalog", "Source")
    for team in apps.get_model("access", "Team").objects.all():
        for name, kind, endpoint in SOURCES:
            source.objects.get_or_create(team=team, name=name, defaults={"kind": kind, "endpoint": endpoint})


class Migration(migrations.Migration):

    replaces = [
        ('catalog', '0001_initial'),
        ('catalog', '0002_sources_and_consents'),
        ('catalog', '0003_default_sources'),
        ('catalog', '0004_revision_shape'),
    ]

    initial = True

    dependencies = [
        ('access', '0001_squashed_0002_default_team'),
        ('access', '__first__'),
        ('fleet', '0001_squashed_0005_host_labels'),
    ]

    operations = [
        migrations.CreateModel(
            name='Model',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=120)),
                ('source', models.CharField(choices=[('directory', 'a directory on a host'), ('hub', 'the Hugging Face hub'), ('mirror', 'a mirror of the hub'), ('modelscope', 'ModelScope')], default='directory', max_length=12)),
                ('repository', models.CharField(blank=True, max_length=200)),
                ('license', models.CharField(blank=True, max_length=60)),
                ('notes', models.TextField(blank=True)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('team', models.ForeignKey(default=1, on_delete=django.db.models.deletion.PROTECT, to='access.team')),
            ],
            options={
                'ordering': ['name'],
                'constraints': [models.UniqueConstraint(fields=('team', 'name'), name='one_model_per_name')],
            },
        ),
        migrations.CreateModel(
            name='Revision',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('commit', models.CharField(max_length=64)),
                ('ref', models.CharField(blank=True, max_length=120)),
                ('gated', models.BooleanField(default=False)),
                ('architecture', models.CharField(blank=True, max_length=80)),
                ('facts', models.JSONField(default=dict)),
                ('shape', models.JSONField(default=dict)),
                ('size_bytes', models.BigIntegerField(default=0)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('model', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='revisions', to='catalog.model')),
            ],
            options={
                'ordering': ['model', '-created_at'],
                'constraints': [models.UniqueConstraint(fields=('model', 'commit'), name='one_revision_per_commit')],
            },
        ),
        migrations.CreateModel(
            name='File',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('path', models.CharField(max_length=400)),
                ('size_bytes', models.BigIntegerField()),
                ('sha256', models.CharField(blank=True, max_length=64)),
                ('git_oid', models.CharField(blank=True, max_length=40)),
                ('revision', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='files', to='catalog.revision')),
            ],
            options={
                'ordering': ['path'],
                'constraints': [models.UniqueConstraint(fields=('revision', 'path'), name='one_file_per_path')],
            },
        ),
        migrations.CreateModel(
            name='Copy',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('state_since', models.DateTimeField(default=django.utils.timezone.now)),
                ('state_reason', models.TextField(blank=True, default='')),
                ('state', models.CharField(choices=[('downloading', 'downloading'), ('incomplete', 'not complete'), ('unverified', 'not verified'), ('verified', 'verified'), ('damaged', 'damaged'), ('deleting', 'deleting'), ('removed', 'removed')], default='unverified', max_length=12)),
                ('path', models.CharField(max_length=500)),
                ('size_bytes', models.BigIntegerField(default=0)),
                ('verified_at', models.DateTimeField(null=True)),
                ('checked_at', models.DateTimeField(null=True)),
                ('verification', models.JSONField(default=dict)),
                ('manifest', models.JSONField(default=dict)),
                ('selection', models.JSONField(default=list)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('host', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='copies', to='fleet.host')),
                ('revision', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='copies', to='catalog.revision')),
            ],
            options={
                'ordering': ['revision', 'host'],
                'constraints': [models.UniqueConstraint(fields=('host', 'path'), name='one_copy_per_path')],
            },
        ),
        migrations.CreateModel(
            name='Consent',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('kind', models.CharField(choices=[('pickle', 'pickle weights'), ('remote_code', "the model's own Python code")], max_length=12)),
                ('digest', models.CharField(max_length=64)),
                ('given_by_name', models.CharField(max_length=150)),
                ('reason', models.TextField()),
                ('given_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('given_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('revision', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='consents', to='catalog.revision')),
            ],
            options={
                'ordering': ['-given_at'],
                'constraints': [models.UniqueConstraint(fields=('revision', 'kind', 'digest'), name='one_consent_per_files')],
            },
        ),
        migrations.CreateModel(
            name='Source',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=60)),
                ('kind', models.CharField(choices=[('hub', 'Hugging Face hub'), ('mirror', 'mirror of the hub'), ('modelscope', 'ModelScope')], default='hub', max_length=12)),
                ('endpoint', models.CharField(max_length=200)),
                ('token', models.TextField(blank=True)),
                ('token_set_at', models.DateTimeField(null=True)),
                ('token_checked_at', models.DateTimeField(null=True)),
                ('token_account', models.CharField(blank=True, max_length=120)),
                ('token_problem', models.CharField(blank=True, max_length=400)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('team', models.ForeignKey(default=1, on_delete=django.db.models.deletion.PROTECT, to='access.team')),
            ],
            options={
                'ordering': ['name'],
                'constraints': [models.UniqueConstraint(fields=('team', 'name'), name='one_source_per_name')],
            },
        ),
        migrations.AddField(
            model_name='model',
            name='origin',
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='models', to='catalog.source'),
        ),
        migrations.RunPython(add, migrations.RunPython.noop),
    ]
