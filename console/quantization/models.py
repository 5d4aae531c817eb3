"""Where llm-compressor is installed, and which models were made with it from which."""

from typing import Any

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from console.access.models import Owned, User
from console.benchmarks.models import Dataset
from console.catalog.models import Copy
from console.fleet.models import Host
from console.jobs.models import Job

SCHEMES = [
    ("FP8_DYNAMIC", _("FP8: weights and activations in 8-bit floats, no calibration")),
    ("W8A8", _("W8A8: weights and activations in 8-bit integers")),
    ("W4A16", _("W4A16: weights in 4-bit integers, activations as they were")),
]


class Quantizer(models.Model):
    """One environment with llm-compressor on one host, as the job that brought it said."""

    host = models.ForeignKey(Host, on_delete=models.CASCADE, related_name="quantizers")
    key = models.CharField(max_length=100)
    """Name in the host's register, such as `llmcompressor-0.14.0`."""
    version = models.CharField(max_length=64)
    python = models.CharField(max_length=500)
    adopted = models.BooleanField(default=False)
    """True: someone else made it, and forgetting it deletes nothing."""
    size_bytes = models.BigIntegerField(default=0)
    details: Any = models.JSONField(default=dict)
    """`torch`, `transformers`, `compressed_tensors`, `python`: versions; `gpus`: how many it sees."""
    present = models.BooleanField(default=True)
    seen_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["host", "-seen_at"]
        constraints = [models.UniqueConstraint(fields=["host", "key"], name="one_quantizer_per_key")]

    def __str__(self) -> str:
        return f"llm-compressor {self.version}"


class Quantization(Owned):
    """One model made from another. Its state is its job's."""

    control = models.ForeignKey(Copy, null=True, on_delete=models.SET_NULL, related_name="quantized_to")
    """The copy that it was made from, unquantised."""
    made = models.OneToOneField(Copy, null=True, on_delete=models.SET_NULL, related_name="quantized_from")
    """Null until the files are there."""
    quantizer = models.ForeignKey(Quantizer, null=True, on_delete=models.SET_NULL, related_name="+")
    model_name = models.CharField(max_length=120)
    directory = models.CharField(max_length=100)
    scheme = models.CharField(max_length=20, choices=SCHEMES)
    ignore: Any = models.JSONField(default=list)
    device = models.CharField(max_length=80, blank=True)
    """Uuid of a GPU; empty: on the processors."""
    dataset = models.ForeignKey(Dataset, null=True, on_delete=models.SET_NULL, related_name="+")
    prompts: Any = models.JSONField(default=list)
    """Texts to calibrate with, as they were sent."""
    max_tokens = models.PositiveIntegerField(default=2048)
    source_bytes = models.BigIntegerField(default=0)
    size_bytes = models.BigIntegerField(default=0)
    job = models.ForeignKey(Job, null=True, on_delete=models.SET_NULL, related_name="+")
    requested_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-pk"]

    def __str__(self) -> str:
        return self.model_name

    @property
    def share(self) -> float | None:
        """Its size as a share of the original's; None until it is known."""
        return self.size_bytes / self.source_bytes if self.size_bytes and self.source_bytes else None
