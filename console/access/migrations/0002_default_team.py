from django.db import migrations


def make_default_team(apps, schema_editor):
    apps.get_model("access", "Team").objects.get_or_create(name="default")


class Migration(migrations.Migration):
    dependencies = [("access", "0001_initial")]
    operations = [migrations.RunPython(make_default_team, migrations.RunPython.noop)]
