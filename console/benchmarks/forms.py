"""Forms of benchmarks: what to measure, with what, and how much."""

from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _
from pydantic import ValidationError as PayloadError

from console.access import policies
from console.access.models import User
from console.access.policies import Action
from console.benchmarks import uploads
from console.benchmarks.models import Benchmark, Dataset, Endpoint
from console.benchmarks.profiles import PROFILES
from console.benchmarks.services import Question, Remote
from console.catalog.models import Copy
from console.common.secrets import decrypt
from console.deployments.models import Instance
from console.fleet.models import Engine
from console.gateway.models import Route
from workers.benchmark_payloads import LoadPlan, SweepPlan, Targets, Workload

_QUIET: dict[str, Any] = {"autocomplete": "off", "spellcheck": "false"}
MOST_LOADS = 32
OWN_FIELDS = ("input_tokens", "output_tokens", "spread", "output_spread", "prefix_tokens", "prefixes")


_NEEDED = {
    "instance": ("instance",),
    "route": ("route",),
    "endpoint": ("endpoint", "engine", "tokenizer"),
    "remote": ("url", "model", "engine", "tokenizer"),
}
"""What each kind of target must name."""


class LoadFields(forms.Form):
    """What is asked and how much: shared by single benchmarks, gates and studies."""

    profile = forms.ChoiceField(
        label=_("Profile"), widget=forms.RadioSelect, initial="chat",
        choices=[(one.key, f"{one.title}") for one in PROFILES.values()],
    )  # fmt: skip
    input_tokens = forms.IntegerField(label=_("Prompt, in tokens"), required=False, min_value=1, max_value=1_000_000)
    output_tokens = forms.IntegerField(label=_("Answer, in tokens"), required=False, min_value=1, max_value=100_000)
    spread = forms.FloatField(
        label=_("Prompts uneven by"), required=False, min_value=0, max_value=0.99,
        help_text=_("0.5: lengths lie between half and one and a half of these."),
    )  # fmt: skip
    output_spread = forms.FloatField(
        label=_("Answers uneven by"), required=False, min_value=0, max_value=0.99, help_text=_("Empty: as the prompts.")
    )
    prefix_tokens = forms.IntegerField(label=_("Shared beginning, in tokens"), required=False, min_value=0)
    prefixes = forms.IntegerField(label=_("Different beginnings"), required=False, min_value=1, max_value=10_000)
    by = forms.ChoiceField(
        label=_("Load is"), widget=forms.RadioSelect, initial="concurrency",
        choices=[("concurrency", _("so many requests at once")), ("rate", _("so many requests per second"))],
    )  # fmt: skip
    search = forms.ChoiceField(
        label=_("Loads"), widget=forms.RadioSelect, initial="fixed",
        choices=[("fixed", _("these")), ("sweep", _("search for the highest that meets the targets"))],
    )  # fmt: skip
    values = forms.CharField(
        label=_("These loads"), required=False, initial="1, 4, 16", widget=forms.TextInput(attrs=_QUIET),
        help_text=_("Separated by commas."),
    )  # fmt: skip
    first = forms.FloatField(label=_("Search from"), required=False, min_value=0.01, initial=1)
    most = forms.FloatField(label=_("Up to"), required=False, min_value=0.01, initial=64)
    budget_minutes = forms.FloatField(label=_("For at most, in minutes"), required=False, min_value=1, initial=30)
    requests = forms.IntegerField(
        label=_("Requests at each load"), required=False, min_value=1, max_value=20_000, initial=50,
        help_text=_("Or give a time instead."),
    )  # fmt: skip
    seconds = forms.FloatField(label=_("Seconds at each load"), required=False, min_value=1, max_value=7200)
    repeats = forms.IntegerField(
        label=_("Repeats"), min_value=1, max_value=10, initial=3,
        help_text=_("From two on, the noise is known; a difference inside it is called noise."),
    )  # fmt: skip
    warmups = forms.IntegerField(label=_("Warm-up requests"), min_value=0, max_value=1000, initial=2)
    seed = forms.IntegerField(label=_("Seed"), min_value=0, max_value=2**31 - 1, initial=0)
    ignore_eos = forms.BooleanField(
        label=_("Answers have their full length"), required=False, initial=True,
        help_text=_("The model's own end is ignored, so that all engines do the same work."),
    )  # fmt: skip
    chat = forms.BooleanField(
        label=_("Ask as a chat"), required=False, help_text=_("By the chat interface, with the model's template.")
    )
    ttft_ms = forms.FloatField(label=_("First token within, in ms"), required=False, min_value=0.001)
    itl_ms = forms.FloatField(label=_("Each further token within, in ms"), required=False, min_value=0.001)
    e2e_ms = forms.FloatField(label=_("Whole request within, in ms"), required=False, min_value=0.001)

    def clean_values(self) -> list[float]:
        """Loads as numbers, each once."""
        found: list[float] = []
        for part in filter(None, (part.strip() for part in self.cleaned_data["values"].replace(";", ",").split(","))):
            try:
                value = float(part)
            except ValueError:
                raise ValidationError(_("“%(part)s” is no number."), params={"part": part}) from None
            if not 0 < value <= 100_000:
                raise ValidationError(_("%(part)s is not between 0 and 100,000."), params={"part": part})
            found.append(value)
        if len(found) > MOST_LOADS:
            raise ValidationError(_("At most %(most)d loads."), params={"most": MOST_LOADS})
        return list(dict.fromkeys(found))

    def clean(self) -> dict[str, Any]:
        """One of requests and seconds; loads or where to search; whole numbers at once."""
        data = super().clean() or {}
        if data.get("seconds"):
            data["requests"] = None
        elif not data.get("requests") and "requests" not in self.errors:
            self.add_error("requests", _("Say how many requests, or how long."))
        if data.get("search") == "fixed" and "values" not in self.errors:
            self._clean_fixed(data)
        if data.get("search") == "sweep":
            for name in ("first", "most", "budget_minutes"):
                if not data.get(name) and name not in self.errors:
                    self.add_error(name, _("A search needs this."))
            if data.get("first") and data.get("most") and data["first"] > data["most"]:
                self.add_error("most", _("This is less than where the search begins."))
        return data

    def _clean_fixed(self, data: dict[str, Any]) -> None:
        if not data.get("values"):
            self.add_error("values", _("Give at least one load."))
        elif data.get("by") == "concurrency" and any(value % 1 for value in data["values"]):
            self.add_error("values", _("So many at once is a whole number."))

    def question(self, dataset: Dataset | None = None, prompts: list[dict[str, Any]] | None = None) -> Question:
        """What was asked for. Only after `is_valid`."""
        data = self.cleaned_data
        loads = LoadPlan(
            by=data["by"],
            values=data["values"] if data["search"] == "fixed" else [],
            sweep=SweepPlan(first=data["first"], most=data["most"], budget_seconds=60 * data["budget_minutes"])
            if data["search"] == "sweep"
            else None,
            **{name: data[name] for name in ("requests", "seconds", "repeats", "warmups", "seed", "ignore_eos")},
        )
        targets = Targets(**{name: data[name] for name in ("ttft_ms", "itl_ms", "e2e_ms")})
        return Question(data["profile"], self._workload(dataset, prompts), loads, targets, dataset)

    def _workload(self, dataset: Dataset | None, prompts: list[dict[str, Any]] | None) -> Workload:
        data = self.cleaned_data
        base = PROFILES[data["profile"]].workload
        given = {name: data[name] for name in OWN_FIELDS if data.get(name) is not None}
        if dataset is not None:
            given["kind"] = dataset.form
        elif prompts:
            given |= {"kind": "prompts", "prompts": prompts}
        elif data["profile"] == "custom" and given.get("prefix_tokens"):
            given["kind"] = "shared_prefix"
        interface = "chat" if data["chat"] else "completions"
        return Workload.model_validate({**base.model_dump(), **given, "interface": interface})


class BenchmarkForm(LoadFields):
    """A benchmark of an instance, or of any OpenAI-compatible server."""

    target = forms.ChoiceField(
        label=_("Measure"), widget=forms.RadioSelect, initial="instance",
        choices=[("instance", _("an instance")), ("route", _("a route, through the gateway")),
                 ("endpoint", _("a server that an admin allowed")),
                 ("remote", _("another server, this once"))],
    )  # fmt: skip
    endpoint = forms.ModelChoiceField(label=_("Server"), queryset=Endpoint.objects.none(), required=False)
    route = forms.ModelChoiceField(
        label=_("Route"), queryset=Route.objects.none(), required=False,
        help_text=_("Asked from the host of an instance behind it, with a key that is made for it and revoked at the end."),
    )  # fmt: skip
    instance = forms.ModelChoiceField(label=_("Instance"), queryset=Instance.objects.none(), required=False)
    url = forms.URLField(
        label=_("Address"), required=False, max_length=400, assume_scheme="https",
        widget=forms.URLInput(attrs=_QUIET | {"placeholder": "http://127.0.0.1:8480"}),
        help_text=_("Of the gateway, or of any OpenAI-compatible server; without /v1."),
    )  # fmt: skip
    model = forms.CharField(
        label=_("Model"), required=False, max_length=300, widget=forms.TextInput(attrs=_QUIET),
        help_text=_("The name that is asked for."),
    )  # fmt: skip
    key = forms.CharField(
        label=_("Key"), required=False, max_length=1000, widget=forms.PasswordInput(attrs=_QUIET),
        help_text=_("It is sealed to the host that asks, and forgotten when the benchmark has ended."),
    )  # fmt: skip
    engine = forms.ModelChoiceField(
        label=_("Asked by"), queryset=Engine.objects.none(), required=False,
        help_text=_("The engine whose benchmark client is run, on its host."),
    )  # fmt: skip
    tokenizer = forms.ModelChoiceField(
        label=_("Tokens counted by"), queryset=Copy.objects.none(), required=False,
        help_text=_("A model on the same host."),
    )  # fmt: skip
    upload = forms.FileField(
        label=_("Prompts from a file"),
        required=False,
        help_text=_("ShareGPT JSON, JSONL with “prompt”, or lines of text."),
    )
    dataset = forms.ModelChoiceField(label=_("Prompts brought before"), queryset=Dataset.objects.none(), required=False)
    prompts = forms.CharField(
        label=_("Own prompts"), required=False, widget=forms.Textarea(attrs={"rows": 4}),
        help_text=_("One on each line, or blocks with an empty line between them."),
    )  # fmt: skip
    title = forms.CharField(label=_("Name"), required=False, max_length=120)
    tags = forms.CharField(label=_("Tags"), required=False, max_length=200, help_text=_("Separated by commas."))
    notes = forms.CharField(label=_("Notes"), required=False, widget=forms.Textarea(attrs={"rows": 2}))
    quality = forms.BooleanField(
        label=_("Ask the question set first"), required=False,
        help_text=_("24 short questions with exact answers: shows what a faster variant costs. Only for instances."),
    )  # fmt: skip
    despite_traffic = forms.BooleanField(
        label=_("Measure it although people use it"), required=False,
        help_text=_("Their requests are slowed down meanwhile, and disturb the numbers."),
    )  # fmt: skip

    def __init__(self, *args: Any, user: User, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.user = user
        ready = Instance.objects.filter(state="ready").select_related(
            "deployment",
            "host",
            "spec__copy__revision__model",
            "spec__engine",
            "own_copy__revision__model",
            "own_engine",
        )
        self._choices("instance", policies.visible(user, ready, team_path="deployment__team"))
        engines = Engine.objects.filter(present=True).select_related("host")
        self._choices("engine", policies.visible(user, engines, team_path="host__team"))
        copies = Copy.objects.filter(state__in=("verified", "unverified")).select_related("revision__model", "host")
        self._choices("tokenizer", policies.visible(user, copies, team_path="host__team"))
        self._choices("dataset", policies.visible(user, Dataset.objects.all()))
        self._choices("route", policies.visible(user, Route.objects.filter(enabled=True)))
        self._choices("endpoint", policies.visible(user, Endpoint.objects.all()))
        if not policies.can(user, Action.DEPLOY):
            # Where the console's hosts send requests to is decided by those who set it up.
            self.fields["target"].choices = self.fields["target"].choices[:3]  # type: ignore[attr-defined]
            self._without_typing()
        if self.initial.get("target") == "remote":
            self.fields["key"].widget.attrs["placeholder"] = _("enter it again")
        self.fields["engine"].label_from_instance = lambda one: f"{one} · {one.host}"  # type: ignore[attr-defined]

    def _choices(self, name: str, rows: Any) -> None:
        self.fields[name].queryset = rows  # type: ignore[attr-defined]

    def _without_typing(self) -> None:
        """Asked again by who may not type a server: the same one, if it is allowed meanwhile."""
        if self.initial.get("target") == "remote":
            same = self.fields["endpoint"].queryset.filter(  # type: ignore[attr-defined]
                url=self.initial["url"], model=self.initial["model"]
            )
            self.initial.update({"target": "endpoint", "endpoint": same.values_list("pk", flat=True).first()})

    def clean(self) -> dict[str, Any]:
        """The target is named, and the question makes sense as a whole."""
        data = super().clean()
        needed = _NEEDED.get(data.get("target", ""), ())
        for name in needed:
            if not data.get(name) and name not in self.errors:
                self.add_error(name, _("Say what is measured."))
        if not self.errors:
            try:
                self.question()
            except PayloadError as error:
                self.add_error(None, str(error.errors()[0]["msg"]))
        return data

    def asked(self) -> Question:
        """The question, with the file or the prompts that came along. Raises `Refused` for a file that can't be read."""
        data = self.cleaned_data
        if data["upload"]:
            return self.question(uploads.store(data["upload"], actor=self.user))
        if data["dataset"]:
            return self.question(data["dataset"])
        return self.question(None, uploads.own_prompts(data["prompts"]))

    def remote(self) -> Remote:
        """The server that isn't an instance."""
        data = self.cleaned_data
        if (known := data["endpoint"]) is not None and data["target"] == "endpoint":
            key = decrypt(known.key) if known.key else ""
            return Remote(known.url, known.model, key, data["engine"], data["tokenizer"], known)
        url = data["url"].rstrip("/").removesuffix("/v1")
        return Remote(url, data["model"], data["key"], data["engine"], data["tokenizer"])

    def tag_list(self) -> list[str]:
        """Tags, each once."""
        return tag_list(self.cleaned_data["tags"])


class EndpointForm(forms.Form):
    """A server that may be measured."""

    name = forms.CharField(label=_("Name"), max_length=80)
    url = forms.URLField(
        label=_("Address"), max_length=400, assume_scheme="https", widget=forms.URLInput(attrs=_QUIET),
        help_text=_("Of the gateway, or of any OpenAI-compatible server; without /v1."),
    )  # fmt: skip
    model = forms.CharField(label=_("Model"), max_length=300, widget=forms.TextInput(attrs=_QUIET))
    key = forms.CharField(
        label=_("Key"), required=False, max_length=1000, widget=forms.PasswordInput(attrs=_QUIET),
        help_text=_("Kept encrypted, shown to nobody, and sealed to the host that asks."),
    )  # fmt: skip


class ManyFiles(forms.ClearableFileInput):
    """An input for several files."""

    allow_multiple_selected = True


class FilesField(forms.FileField):
    """Several files."""

    widget = ManyFiles

    def clean(self, data: Any, initial: Any = None) -> Any:
        """Each file by itself."""
        files = data if isinstance(data, list | tuple) else [data]
        return [super(FilesField, self).clean(one, initial) for one in files]


class ImportForm(forms.Form):
    """Results of other tools."""

    results = FilesField(
        label=_("Files"),
        help_text=_("JSON of “vllm bench serve”, of “vllm bench sweep serve” (summary.json, run=N.json), or of GuideLLM. "
                    "Several become one benchmark: runs at the same load are repeats."),
    )  # fmt: skip
    title = forms.CharField(label=_("Name"), required=False, max_length=120)
    notes = forms.CharField(label=_("Notes"), required=False, widget=forms.Textarea(attrs={"rows": 2}))


class DescribeForm(forms.Form):
    """Notes and tags of a benchmark."""

    notes = forms.CharField(label=_("Notes"), required=False, max_length=5000, widget=forms.Textarea(attrs={"rows": 3}))
    tags = forms.CharField(label=_("Tags"), required=False, max_length=200, help_text=_("Separated by commas."))

    def tag_list(self) -> list[str]:
        """Tags, each once."""
        return tag_list(self.cleaned_data["tags"])


def tag_list(text: str) -> list[str]:
    """Tags as they were typed, each once, at most ten."""
    return list(dict.fromkeys(part.strip()[:40] for part in text.split(",") if part.strip()))[:10]


def initial_of(benchmark: Benchmark) -> dict[str, Any]:
    """The form as a benchmark was asked for, to ask again."""
    workload, loads = benchmark.asked, benchmark.load_plan
    given: dict[str, Any] = {name: getattr(workload, name) for name in OWN_FIELDS}
    given |= {
        name: getattr(loads, name) for name in ("by", "requests", "seconds", "repeats", "warmups", "seed", "ignore_eos")
    }
    given |= benchmark.goals.model_dump()
    given |= {"profile": benchmark.profile, "chat": workload.interface == "chat", "dataset": benchmark.dataset_id}
    given |= {"prompts": "\n\n".join(one.prompt for one in workload.prompts), "tags": ", ".join(benchmark.tags)}
    if loads.sweep is not None:
        given |= {"search": "sweep", "first": loads.sweep.first, "most": loads.sweep.most,
                  "budget_minutes": loads.sweep.budget_seconds / 60}  # fmt: skip
    else:
        given |= {"search": "fixed", "values": ", ".join(f"{value:g}" for value in loads.values)}
    if benchmark.route_id:
        given |= {"target": "route", "route": benchmark.route_id}
    elif benchmark.remote_url:
        given |= {"target": "endpoint" if benchmark.endpoint_id else "remote", "endpoint": benchmark.endpoint_id,
                  "url": benchmark.remote_url, "model": benchmark.remote_model, "engine": benchmark.client_engine_id,
                  "tokenizer": benchmark.tokenizer_id}  # fmt: skip
    elif benchmark.instance_id:
        given |= {"target": "instance", "instance": benchmark.instance_id}
    return given
