"""What is asked in a benchmark: the profiles that Slipway brings. A custom one says everything itself."""

from dataclasses import dataclass

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from workers.benchmark_payloads import Workload


@dataclass(frozen=True)
class Profile:
    """A kind of load as people know it. Lengths are tokens; they are cut to what the engine's context allows."""

    key: str
    title: str | Promise
    about: str | Promise
    workload: Workload


PROFILES: dict[str, Profile] = {
    profile.key: profile
    for profile in (
        Profile(
            "chat",
            _("Chat"),
            _("Short questions and middling answers, of uneven length."),
            Workload(kind="random", input_tokens=220, output_tokens=160, spread=0.5),
        ),
        Profile(
            "long_prompt",
            _("Long prompt"),
            _("Documents to read, short answers: the first token is what takes time."),
            Workload(kind="random", input_tokens=3000, output_tokens=100, spread=0.2),
        ),
        Profile(
            "long_answer",
            _("Long answer"),
            _("Short questions, long answers: the time between tokens is what counts."),
            Workload(kind="random", input_tokens=120, output_tokens=1000, spread=0.2),
        ),
        Profile(
            "shared_prefix",
            _("Shared prefix"),
            _("The same long beginning before every question, as a system prompt or a document: prefix caching shows."),
            Workload(kind="shared_prefix", prefix_tokens=1000, prefixes=1, input_tokens=100, output_tokens=100),
        ),
        Profile("custom", _("Custom"), _("Lengths, or your own prompts."), Workload()),
    )
}


def fitted(workload: Workload, context_tokens: int | None) -> Workload:
    """The workload with lengths that fit into a context of so many tokens, in the same proportion; None: unknown."""
    if context_tokens is None or workload.kind in ("prompts", "conversations"):
        return workload
    longest = 1 + max(workload.spread, workload.output_spread or 0)
    asked = workload.prefix_tokens + (workload.input_tokens + workload.output_tokens) * longest
    # A few tokens of room: tokenizers add their own, and a chat template adds its frame.
    room = context_tokens - max(16, context_tokens // 32)
    if asked <= room:
        return workload
    share = room / asked
    return workload.model_copy(
        update={name: max(1, int(getattr(workload, name) * share)) for name in ("input_tokens", "output_tokens")}
        | {"prefix_tokens": int(workload.prefix_tokens * share)}
    )
