"""Fields of the deploy form about health: what is asked before it serves, and what happens when it stops answering."""

from collections.abc import Mapping
from typing import Any

from django import forms
from django.core.validators import RegexValidator
from django.utils.translation import gettext_lazy as _

from workers.contracts import Probe, RestartPolicy

DEFAULT_PROBE = Probe()
DEFAULT_RESTART = RestartPolicy()
LONGEST_SECONDS = 24 * 3600
DEFAULT_START_MINUTES = 30
EXAMPLES = ("probe_expected", "probe_language")
"""Fields whose placeholder is an example; that of the others is what an empty one stands for."""
DECLARABLE = ("tools", "json")


def number_input(placeholder: Any) -> forms.NumberInput:
    """An input for a number, with its default as the placeholder."""
    return forms.NumberInput(attrs={"placeholder": placeholder, "inputmode": "numeric"})


class HealthFields(forms.Form):
    """Base of the deploy form. An empty field stands for the contract's default."""

    probe_mode = forms.ChoiceField(
        label=_("Asked as"),
        required=False,
        choices=[
            ("", _("a chat")),
            ("completions", _("a text to go on with")),
            ("embeddings", _("a text to make a vector of")),
        ],
        help_text=_(
            "A base model without a chat template can't be asked as a chat. An engine that makes no text is asked for vectors "
            "whatever stands here."
        ),
    )
    probe_prompt = forms.CharField(
        label=_("Probe question"),
        required=False,
        max_length=4000,
        help_text=_("Asked at temperature 0 before the model counts as ready: /health alone says little."),
        widget=forms.TextInput(attrs={"placeholder": DEFAULT_PROBE.prompt}),
    )
    probe_expected = forms.CharField(
        label=_("Expected in the answer"),
        required=False,
        max_length=1000,
        help_text=_("Empty: any sane answer will do."),
        widget=forms.TextInput(attrs={"placeholder": _("such as Paris")}),
    )
    probe_language = forms.CharField(
        label=_("Language of the answer"),
        required=False,
        max_length=20,
        validators=[RegexValidator(r"^[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*$", _("Give a tag such as en or zh-Hans."))],
        help_text=_("An answer in another language fails the start. Empty: any."),
        widget=forms.TextInput(attrs={"placeholder": "en"}),
    )
    declares_tools = forms.BooleanField(
        label=_("Clients call tools"),
        required=False,
        help_text=_(
            "A start fails unless the model calls a tool. It is also asked when the arguments name a tool parser."
        ),
    )
    declares_json = forms.BooleanField(
        label=_("Clients ask for JSON"),
        required=False,
        help_text=_("A start fails unless an answer keeps to a JSON schema. Asked only of chats."),
    )
    patience_seconds = forms.FloatField(
        label=_("Time for long prompts (seconds)"),
        required=False,
        min_value=0,
        max_value=240,
        help_text=_(
            "What prompts up to the context may take before it serves, and what asking again may. Empty: a second on a slow "
            "engine, half a minute on one that reads fast; what was not reached is said."
        ),
        widget=forms.NumberInput(attrs={"placeholder": _("by the engine's pace"), "inputmode": "decimal"}),
    )
    warmup_prompt = forms.CharField(
        label=_("Warm-up prompt"),
        required=False,
        max_length=4000,
        help_text=_("Sent twice after the probe, so that the first person doesn't wait for kernels to be built."),
        widget=forms.TextInput(attrs={"placeholder": DEFAULT_PROBE.warmup_prompt}),
    )
    warmup_prompts = forms.CharField(
        label=_("Own warm-up prompts"),
        required=False,
        max_length=20_000,
        help_text=_("One a line, as your clients ask: sent in turn until the time to the first token is stable."),
        widget=forms.Textarea(attrs={"rows": 2}),
    )
    ttft_target_seconds = forms.FloatField(
        label=_("Time to the first token (seconds)"),
        required=False,
        min_value=0,
        max_value=600,
        help_text=_(
            "Warm-up tries to reach it, for a minute at most, and says what it reached. Empty: until it is stable."
        ),
        widget=forms.NumberInput(attrs={"placeholder": _("stable is enough"), "inputmode": "decimal"}),
    )
    restart_budget = forms.IntegerField(
        label=_("Restarts"),
        required=False,
        min_value=0,
        max_value=100,
        help_text=_("How often it is restarted by itself within the window; after that it waits for a person."),
        widget=number_input(str(DEFAULT_RESTART.budget)),
    )
    restart_minutes = forms.IntegerField(
        label=_("Window (minutes)"),
        required=False,
        min_value=1,
        max_value=24 * 60,
        help_text=_("Restarts older than this are forgiven."),
        widget=number_input(f"{DEFAULT_RESTART.window_seconds / 60:g}"),
    )
    hang_seconds = forms.FloatField(
        label=_("Hung after (seconds)"),
        required=False,
        min_value=0,
        max_value=LONGEST_SECONDS,
        help_text=_(
            "An engine with work that makes no progress for so long is ended, and restarted. 0: it is only shown."
        ),
        widget=number_input(f"{DEFAULT_RESTART.hang_seconds:g}"),
    )
    probe_seconds = forms.FloatField(
        label=_("Asked again every (seconds)"),
        required=False,
        min_value=0,
        max_value=LONGEST_SECONDS,
        help_text=_("An idle engine is asked for one token, since an open port proves little. 0: never."),
        widget=number_input(f"{DEFAULT_RESTART.probe_seconds:g}"),
    )
    probe_under_load = forms.BooleanField(
        label=_("Asked under load as well"),
        required=False,
        help_text=_("It costs a place in the queue; the engine's own counters show progress without it."),
    )

    def probe_over(self, base: Probe) -> Probe:
        """What is asked, as the form says it; what it has no field for stays as in `base`."""
        data: Mapping[str, Any] = self.cleaned_data
        return base.model_copy(
            update={
                "mode": data["probe_mode"] or DEFAULT_PROBE.mode,
                "prompt": data["probe_prompt"] or DEFAULT_PROBE.prompt,
                "expected": data["probe_expected"],
                "language": data["probe_language"],
                "declares": [one for one in DECLARABLE if data[f"declares_{one}"]],
                "patience_seconds": _given(data["patience_seconds"], DEFAULT_PROBE.patience_seconds),
                "warmup_prompt": data["warmup_prompt"] or DEFAULT_PROBE.warmup_prompt,
                "warmup_prompts": [line.strip() for line in data["warmup_prompts"].splitlines() if line.strip()],
                "ttft_target_seconds": _given(data["ttft_target_seconds"], DEFAULT_PROBE.ttft_target_seconds),
            }
        )

    def restart_over(self, base: RestartPolicy) -> RestartPolicy:
        """When an engine is restarted, as the form says it; what it has no field for stays as in `base`."""
        data: Mapping[str, Any] = self.cleaned_data
        window = data["restart_minutes"]
        return base.model_copy(
            update={
                "budget": _given(data["restart_budget"], DEFAULT_RESTART.budget),
                "window_seconds": 60.0 * window if window else DEFAULT_RESTART.window_seconds,
                "hang_seconds": _given(data["hang_seconds"], DEFAULT_RESTART.hang_seconds),
                "probe_seconds": _given(data["probe_seconds"], DEFAULT_RESTART.probe_seconds),
                "probe_under_load": data["probe_under_load"],
            }
        )


def health_texts(probe: Probe, restart: RestartPolicy) -> dict[str, str]:
    """The fields' texts for a spec; what is as by default stays empty, so that only changes are marked as such."""
    return {
        "probe_mode": _unless(probe.mode, DEFAULT_PROBE.mode),
        "probe_prompt": _unless(probe.prompt, DEFAULT_PROBE.prompt),
        "probe_expected": probe.expected,
        "probe_language": probe.language,
        **{f"declares_{one}": "on" if one in probe.declares else "" for one in DECLARABLE},
        "patience_seconds": _unless(probe.patience_seconds, DEFAULT_PROBE.patience_seconds),
        "warmup_prompt": _unless(probe.warmup_prompt, DEFAULT_PROBE.warmup_prompt),
        "warmup_prompts": "\n".join(probe.warmup_prompts),
        "ttft_target_seconds": _unless(probe.ttft_target_seconds, DEFAULT_PROBE.ttft_target_seconds),
        "restart_budget": _unless(restart.budget, DEFAULT_RESTART.budget),
        "restart_minutes": _unless(restart.window_seconds / 60, DEFAULT_RESTART.window_seconds / 60),
        "hang_seconds": _unless(restart.hang_seconds, DEFAULT_RESTART.hang_seconds),
        "probe_seconds": _unless(restart.probe_seconds, DEFAULT_RESTART.probe_seconds),
        "probe_under_load": "on" if restart.probe_under_load else "",
    }


def _unless(value: Any, default: Any) -> str:
    if value == default:
        return ""
    return value if isinstance(value, str) else f"{value:g}"


def _given(value: Any, default: Any) -> Any:
    return default if value is None else value
