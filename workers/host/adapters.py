"""The LoRA adapters of one running engine, kept at what its order says.

The engine itself is asked what it has (`/v1/models`), so nothing is kept about it: a new agent finds what the one before
loaded, and a new process of the engine starts with none. Each adapter is loaded by a link whose name tells the files and
the order's `load`: what was loaded from other files, or is to be loaded anew, has another path, and the engine doesn't take
what its prefix cache holds of the old one for the new one's.
"""

import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from uuid import UUID

from workers.contracts import AdapterOrder, AdapterSeen, AdaptersObserved, Body, Failure, InstanceOrder
from workers.host.engine_client import EngineClient, EngineError
from workers.host.failures import StepFailedError
from workers.host.instance_files import InstanceFiles
from workers.vllm.lora import ENABLE, settings_of
from workers.weights.verification import FileRecord, changed_files

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 15.0
"""How often the engine is asked what it has, when nothing is to be done."""
_FIRST_RETRY_SECONDS = 2.0
_LAST_RETRY_SECONDS = 60.0
_LOAD_SECONDS = 120.0
_SHOWN_CHANGES = 3


class Adapters:
    """Those of one process of an engine. `go_on` and `tell` are called about ten times a second and never block."""

    def __init__(
        self, files: InstanceFiles, attempt: int, order: InstanceOrder, key: str, links: Path
    ) -> None:  # fmt: skip
        self.attempt = attempt
        self._files = files
        self._order = order
        self._key = key
        self._links = links
        self._on = settings_of(order.arguments).enabled
        self._seen: dict[str, AdapterSeen] = {}
        """Replaced as a whole, never changed: another thread reads it."""
        self._looked = False
        self._wanted: list[AdapterOrder] | None = None
        self._future: Future[None] | None = None
        self._due_at = 0.0
        self._failures = 0
        self._told: list[AdapterSeen] = []

    def go_on(self, wanted: Sequence[AdapterOrder], threads: Executor) -> None:
        """Bring the engine to `wanted` if it isn't known to be there."""
        if self._future is not None and not self._future.done():
            return
        if list(wanted) != self._wanted:
            self._wanted, self._due_at, self._failures = list(wanted), 0.0, 0
        if time.monotonic() < self._due_at or not (self._on or wanted):
            return
        self._future = threads.submit(self._run, list(wanted))

    def tell(self, report: Callable[[Body], object]) -> None:
        """Report what is new since this agent last told it."""
        seen = [self._seen[name] for name in sorted(self._seen)]
        if seen == self._told or not (self._looked or any(one.state == "loading" for one in seen)):
            return
        report(AdaptersObserved(instance=self._files.instance, attempt=self.attempt, adapters=seen))
        self._told = seen

    # -- in a thread ------------------------------------------------------------------------------------------------

    def _run(self, wanted: list[AdapterOrder]) -> None:
        failed = False
        try:
            with EngineClient(self._order.port, self._key, timeout_seconds=_LOAD_SECONDS) as client:
                failed = self._bring(client, wanted)
        except EngineError as error:
            logger.warning("instance %s: its adapters can't be looked at: %s", self._files.instance, error)
            failed = True
        except Exception:
            logger.exception("instance %s: its adapters could not be looked at", self._files.instance)
            failed = True
        else:
            self._looked = True
        self._failures = self._failures + 1 if failed else 0
        pause = min(_LAST_RETRY_SECONDS, _FIRST_RETRY_SECONDS * 2 ** (self._failures - 1)) if failed else _LOOK_SECONDS
        self._due_at = time.monotonic() + pause

    def _bring(self, client: EngineClient, wanted: list[AdapterOrder]) -> bool:
        """Unload what is not wanted, load what is; True if something failed."""
        ours = {order.name: order for order in wanted}
        self._seen = {name: seen for name, seen in self._seen.items() if name in ours}
        if not self._on:
            self._seen = {name: _seen(order, "failed", _lora_off()) for name, order in ours.items()}
            return True
        there = {name: str(model.get("root") or "") for name, model in client.models().items()}
        for name, root in there.items():
            # Those that --lora-modules named, and what other hands loaded, are left alone.
            if name not in ours and root.startswith(f"{self._links}/"):
                client.unload_adapter(name)
                logger.info("instance %s: adapter %s unloaded", self._files.instance, name)
        failed = [name for name, order in ours.items() if not self._bring_one(client, order, there.get(name))]
        self._sweep({link_name(order) for order in wanted})
        return bool(failed)

    def _bring_one(self, client: EngineClient, order: AdapterOrder, root: str | None) -> bool:
        link = self._links / link_name(order)
        try:
            # Of a loaded one, too: an engine that has put it aside reads its files again at the next request.
            check_files(order)
            if root != str(link):
                self._note(order, "loading")
                make_link(link, Path(order.path))
                _load(client, order.name, str(link), replace=root is not None)
                logger.info("instance %s: adapter %s loaded from %s", self._files.instance, order.name, order.path)
        except StepFailedError as error:
            self._note(order, "failed", error.failure)
            if root is not None and root.startswith(f"{self._links}/"):
                client.unload_adapter(order.name)
        except EngineError as error:
            logger.warning("instance %s: adapter %s: %s", self._files.instance, order.name, error)
            self._note(order, "failed", _refused(error))
        else:
            self._note(order, "loaded")
            return True
        return False

    def _note(self, order: AdapterOrder, state: str, failure: Failure | None = None) -> None:
        self._seen = {**self._seen, order.name: _seen(order, state, failure)}

    def _sweep(self, used: set[str]) -> None:
        """Links that no adapter is loaded by any more; what failed to be unloaded is met again by its link."""
        for link in self._links.iterdir() if self._links.is_dir() else ():
            if link.is_symlink() and link.name not in used:
                link.unlink(missing_ok=True)


def links_of(state_dir: Path, instance: UUID) -> Path:
    """Folder of the links by which an instance's adapters are loaded."""
    return state_dir / "instances" / str(instance) / "adapters"


def link_name(order: AdapterOrder) -> str:
    """Name of the link: another one for other files, another directory, or another `load`."""
    text = "\n".join([order.path, *sorted(one.model_dump_json() for one in order.files)])
    return f"{hashlib.sha256(text.encode()).hexdigest()[:24]}-{order.load}"


def check_files(order: AdapterOrder) -> None:
    """Raise `StepFailedError` (`adapter.…`) unless the files are there, and are those that were verified."""
    if not Path(order.path).is_dir():
        raise StepFailedError(
            "adapter.gone",
            f"there is no directory {order.path} on this host",
            next_step="Bring the adapter's files to this host again.",
        )
    if not order.files:
        raise StepFailedError(
            "adapter.unverified", "its files were never verified on this host", next_step="Verify its copy."
        )
    changed = changed_files(order.path, [FileRecord(**one.model_dump()) for one in order.files])
    if changed:
        more = f" and {len(changed) - _SHOWN_CHANGES} more" if len(changed) > _SHOWN_CHANGES else ""
        raise StepFailedError(
            "adapter.changed",
            f"files were touched since they were verified: {', '.join(changed[:_SHOWN_CHANGES])}{more}",
            next_step="Verify the copy of the adapter; it is loaded by itself then.",
        )


def make_link(link: Path, target: Path) -> None:
    """Let `link` point at `target`; one that does already stays."""
    link.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not link.is_symlink() or link.readlink() != target:
        link.unlink(missing_ok=True)
        link.symlink_to(target)


def _load(client: EngineClient, name: str, path: str, *, replace: bool) -> None:
    try:
        client.load_adapter(name, path, replace=replace)
    except EngineError as error:
        if not replace or error.status != 400:
            raise
        # An engine before load_inplace: the name is free for a moment.
        client.unload_adapter(name)
        client.load_adapter(name, path, replace=False)


def _seen(order: AdapterOrder, state: str, failure: Failure | None = None) -> AdapterSeen:
    return AdapterSeen.model_validate({"name": order.name, "load": order.load, "state": state, "failure": failure})


def _refused(error: EngineError) -> Failure:
    if error.status is None:
        return Failure(
            code="adapter.no_answer",
            message=f"the engine did not answer: {error}",
            next="Nothing: it is tried again, less and less often, once a minute in the end.",
        )
    return Failure(
        code="adapter.refused",
        message=str(error),
        next="Compare its rank with --max-lora-rank and its base with the model; it is tried again once a minute.",
    )


def _lora_off() -> Failure:
    return Failure(
        code="adapter.lora_off",
        message=f"this engine runs without {ENABLE}",
        next=f"Change the deployment: add {ENABLE} to its arguments.",
    )
