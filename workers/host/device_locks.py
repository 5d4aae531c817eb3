"""One benchmark at a time on each device: two that share one would measure each other."""

import fcntl
import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from workers.host.step_context import StepContext

_LOOK_EVERY_SECONDS = 0.5
_WHOLE_HOST = "host"


@contextmanager
def measured_alone(context: StepContext, devices: Sequence[str]) -> Iterator[None]:
    """Hold the devices (by uuid; none: the whole host) for a measurement, waiting until others have given them back.

    They are taken in one order by all, so that no two wait for each other, and the kernel gives them back if we die.
    """
    folder = context.config.state_dir / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with ExitStack() as held:
        for device in sorted(set(devices)) or [_WHOLE_HOST]:
            name = hashlib.sha256(device.encode()).hexdigest()[:16]
            held.callback(os.close, _locked(context, folder / f"{name}.lock"))
        yield


def _locked(context: StepContext, path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                context.progress(0, unit="items", waiting_for="another benchmark on this device to end")
                context.sleep(_LOOK_EVERY_SECONDS)
            else:
                return descriptor
    except BaseException:
        os.close(descriptor)
        raise
