"""The desired state on this host's disk: the newest that was ever accepted, converged to even when nobody can be reached."""

import logging
from pathlib import Path

from pydantic import ValidationError

from workers.contracts import CONTRACT, DesiredState
from workers.host.files import read_json, write_json

logger = logging.getLogger(__name__)


class DesiredStore:
    """Holds the accepted state; `state` is `None` until the console has sent one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._complained: str = ""
        raw = read_json(path)
        self.state: DesiredState | None = DesiredState.model_validate(raw) if raw else None

    def offer(self, text: str | bytes) -> bool:
        """Take over the JSON of a `DesiredState` if it is newer than what is known; returns whether it was.

        An older generation is refused: it can only come from a console or a broker that was restored. A later epoch
        is accepted like a later number; the console starts one only after it has read what runs here.
        """
        try:
            offered = DesiredState.model_validate_json(text)
        except ValidationError as error:
            self._complain(f"the desired state is not understood, the last one stays: {error.error_count()} errors")
            return False
        if offered.contract > CONTRACT:
            self._complain(f"the console speaks contract {offered.contract}, this agent {CONTRACT}: upgrade needed")
            return False
        known = self.state.generation if self.state else None
        if not offered.generation.newer_than(known):
            if known is not None and known.newer_than(offered.generation):
                self._complain(f"refused generation {offered.generation}, because {known} is known")
            return False
        write_json(self._path, offered.model_dump(mode="json"))
        self.state = offered
        return True

    def _complain(self, text: str) -> None:
        if text != self._complained:
            logger.warning("%s", text)
            self._complained = text
