from django.db import migrations

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
    dependencies = [("catalog", "0002_sources_and_consents"), ("access", "0002_default_team")]

    operations = [migrations.RunPython(add, migrations.RunPython.noop)]
