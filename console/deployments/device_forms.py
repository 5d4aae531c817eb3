"""The form of one kind of device in the catalogue."""

from typing import Any

from django import forms
from django.core.validators import RegexValidator
from django.utils.translation import gettext_lazy as _

from workers.vllm.memory import Device, parse_bytes


class DeviceKindForm(forms.Form):
    """What planning needs to know about a kind of device."""

    key = forms.CharField(
        label=_("Short name"),
        max_length=40,
        validators=[RegexValidator(r"^[a-z0-9][a-z0-9-]*$", _("Use lower-case letters, digits and hyphens."))],
        help_text=_("What is given to slipway plan as --device."),
    )
    title = forms.CharField(label=_("Name"), max_length=80)
    vendor = forms.ChoiceField(
        label=_("Vendor"), choices=[("nvidia", "NVIDIA"), ("amd", "AMD"), ("unknown", _("other")), ("cpu", "CPU")]
    )
    platform = forms.ChoiceField(label=_("Engine platform"), choices=[("cuda", _("GPU")), ("cpu", "CPU")])
    memory = forms.CharField(
        label=_("Memory"),
        max_length=40,
        help_text=_("As the engine sees it, less than what is printed on the box: 79.1GiB, 80GB or bytes."),
    )
    capability = forms.CharField(
        label=_("CUDA capability"),
        required=False,
        validators=[RegexValidator(r"^\d{1,2}\.\d$", _("Give it as 8.9."))],
        help_text=_("Decides which quantisations run natively. Empty where there is none."),
    )
    bandwidth_gb_s = forms.IntegerField(
        label=_("Memory bandwidth (GB/s)"), required=False, min_value=1, max_value=100_000
    )
    nvlink_gb_s = forms.IntegerField(
        label=_("Link to its neighbours (GB/s)"), required=False, min_value=0, max_value=100_000
    )
    overhead_class = forms.ChoiceField(
        label=_("Overhead"),
        choices=[("datacenter", _("as data-centre cards")), ("workstation", _("as workstation cards")), ("cpu", "CPU")],
        help_text=_("Which first guess counts until launches here have shown better."),
    )
    aliases = forms.CharField(
        label=_("Other names"),
        required=False,
        max_length=400,
        help_text=_("Separated by commas; among them what the driver reports."),
    )

    def clean_memory(self) -> int:
        """Bytes."""
        try:
            nbytes = parse_bytes(self.cleaned_data["memory"])
        except ValueError as error:
            raise forms.ValidationError(str(error)) from None
        if not 2**30 <= nbytes <= 2**50:
            raise forms.ValidationError(_("Between 1 GiB and 1 PiB."))
        return nbytes

    def facts(self) -> dict[str, Any]:
        """What is stored."""
        data = self.cleaned_data
        names = ("title", "vendor", "platform", "bandwidth_gb_s", "overhead_class")
        return {name: data[name] for name in names} | {
            "memory_bytes": data["memory"],
            "nvlink_gb_s": data["nvlink_gb_s"] or 0,
            "capability": [int(part) for part in data["capability"].split(".")] if data["capability"] else None,
            "aliases": [one.strip().lower() for one in data["aliases"].split(",") if one.strip()],
        }

    @staticmethod
    def texts_of(device: Device) -> dict[str, Any]:
        """A device as the form shows it."""
        return {
            "key": device.key,
            "title": device.title,
            "vendor": device.vendor,
            "platform": device.platform,
            "memory": _memory_text(device.memory_bytes or 0),
            "capability": f"{device.capability[0]}.{device.capability[1]}" if device.capability else "",
            "bandwidth_gb_s": device.bandwidth_gb_s,
            "nvlink_gb_s": device.nvlink_gb_s,
            "overhead_class": device.overhead_class,
            "aliases": ", ".join(device.aliases),
        }


def _memory_text(nbytes: int) -> str:
    """As a person writes it, where reading that again gives the same bytes."""
    short = f"{nbytes / 2**30:.10g}" if nbytes % 2**20 == 0 else f"{nbytes / 2**30:.2f}"
    text = f"{short}GiB"
    return text if nbytes and parse_bytes(text) == nbytes else str(nbytes or "")
