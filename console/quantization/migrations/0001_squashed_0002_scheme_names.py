import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    replaces = [
        ('quantization', '0001_quantizers'),
        ('quantization', '0002_scheme_names'),
    ]

    initial = True

    dependencies = [
        ('access', '0001_squashed_0002_default_team'),
        ('access', '__first__'),
        ('benchmarks', '0001_squashed_0003_endpoints'),
        ('catalog', '0001_squashed_0004_revision_shape'),
        ('fleet', '0001_squashed_0005_host_labels'),
        ('jobs', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='Quantizer',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('key', models.CharField(max_length=100)),
                ('version', models.CharField(max_length=64)),
                ('python', models.CharField(max_length=500)),
                ('adopted', models.BooleanField(default=False)),
                ('size_bytes', models.BigIntegerField(default=0)),
                ('details', models.JSONField(default=dict)),
                ('present', models.BooleanField(default=True)),
                ('seen_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('host', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='quantizers', to='fleet.host')),
            ],
            options={
                'ordering': ['host', '-seen_at'],
                'constraints': [models.UniqueConstraint(fields=('host', 'key'), name='one_quantizer_per_key')],
            },
        ),
        migrations.CreateModel(
            name='Quantization',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('model_name', models.CharField(max_length=120)),
                ('directory', models.CharField(max_length=100)),
                ('scheme', models.CharField(choices=[('FP8_DYNAMIC', 'FP8: weights and activations in 8-bit floats, no calibration'), ('W8A8', 'W8A8: weights and activations in 8-bit integers'), ('W4A16', 'W4A16: weights in 4-bit integers, activations as they were')], max_length=20)),
                ('ignore', models.JSONField(default=list)),
                ('device', models.CharField(blank=True, max_length=80)),
                ('prompts', models.JSONField(default=list)),
                ('max_tokens', models.PositiveIntegerField(default=2048)),
                ('source_bytes', models.BigIntegerField(default=0)),
                ('size_bytes', models.BigIntegerField(default=0)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('control', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='quantized_to', to='catalog.copy')),
                ('dataset', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='benchmarks.dataset')),
                ('job', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='jobs.job')),
                ('made', models.OneToOneField(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='quantized_from', to='catalog.copy')),
                ('requested_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('team', models.ForeignKey(default=1, on_delete=django.db.models.deletion.PROTECT, to='access.team')),
                ('quantizer', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='quantization.quantizer')),
            ],
            options={
                'ordering': ['-pk'],
            },
        ),
    ]
