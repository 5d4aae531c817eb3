"""What was planned for an instance's launch, and the conditions of launches, filled in for those of before."""

from typing import Any

from django.db import migrations, models


def fill_in(apps: Any, _schema_editor: Any) -> None:
    """From what was planned, and from the arguments while the start is still known."""
    rows = apps.get_model("deployments", "Launch").objects.select_related("attempt__instance__spec")
    for row in rows.iterator():
        row.tensor_parallel = row.prediction.get("tensor_parallel_size") or 1
        row.pipeline_parallel = row.prediction.get("pipeline_parallel_size") or 1
        words = {word.replace("_", "-") for word in row.attempt.instance.spec.arguments} if row.attempt else set()
        row.eager = "--enforce-eager" in words
        if "--enable-lora" in words and not row.truth.get("weights_bytes"):
            row.residual_bytes = None  # the room for adapters is in it, which a plan adds by itself
        row.save(update_fields=["tensor_parallel", "pipeline_parallel", "eager", "residual_bytes"])


class Migration(migrations.Migration):
    dependencies = [("deployments", "0001_squashed_0010_adapters")]

    operations = [
        migrations.AddField("instance", "prediction", models.JSONField(default=dict)),
        migrations.AddField("launch", "tensor_parallel", models.PositiveIntegerField(default=1)),
        migrations.AddField("launch", "pipeline_parallel", models.PositiveIntegerField(default=1)),
        migrations.AddField("launch", "eager", models.BooleanField(default=False)),
        migrations.RunPython(fill_in, migrations.RunPython.noop),
    ]
