"""How a rollout goes: its steps and margins, as a person chose them. Stored with the rollout; what was chosen counts."""

from dataclasses import asdict, dataclass, field
from typing import Any

USUAL_WEIGHTS = (1, 5, 25, 50, 100)
USUAL_HOLD_SECONDS = 300
USUAL_SHADOW_SECONDS = 600


@dataclass(frozen=True)
class Stage:
    """A share of the requests, and how long it holds at least."""

    weight: int
    """Per cent."""
    hold_seconds: float
    shadow_percent: int = 0
    """So many per cent of the requests are also sent to the new side, whose answers nobody gets; `weight` is 0 then."""


@dataclass(frozen=True)
class Margins:
    """By how much the new side may be worse."""

    ttft: float = 0.20
    """Of the 95th percentile of the time to the first token, relative."""
    pace: float = 0.20
    """Of the 95th percentile of the time between tokens, relative."""
    errors: float = 0.01
    """Of the share of failed requests, absolute."""
    finish: float = 0.10
    """Of the share of answers that don't end by themselves, absolute."""


@dataclass(frozen=True)
class Plan:
    """Everything that was chosen."""

    stages: tuple[Stage, ...] = field(
        default_factory=lambda: tuple(Stage(weight, USUAL_HOLD_SECONDS) for weight in USUAL_WEIGHTS)
    )
    margins: Margins = Margins()
    patience_seconds: float = 3600
    """A step without a verdict for so long is held, and a person is asked."""
    probe_seconds: float = 10
    """A validation question goes to both sides so often."""
    hang_seconds: float = 30
    """An answer whose first token takes longer, while the other side answers, is a hang."""
    drain_seconds: float = 600
    """Requests in flight have so long to finish, once their side gets no new ones."""
    version: str = "next"
    """X-Model-Version by which clients reach the new side before anybody; empty: nobody does."""
    top_up: bool = True
    """The console asks both sides itself where there is too little traffic for a verdict."""

    @property
    def shadow(self) -> Stage | None:
        """The stage in which requests are only copied; None if none was asked for."""
        return next((stage for stage in self.stages if stage.shadow_percent), None)

    @property
    def weights(self) -> list[int]:
        """The shares of the stages in which requests shift."""
        return [stage.weight for stage in self.stages if not stage.shadow_percent]

    def as_json(self) -> dict[str, Any]:
        """For the database."""
        return asdict(self)

    @classmethod
    def of_json(cls, content: dict[str, Any]) -> "Plan":
        """The opposite of `as_json`."""
        stages = tuple(Stage(**one) for one in content["stages"])
        return cls(**{**content, "stages": stages, "margins": Margins(**content["margins"])})
