"""Why an engine ended: read from the whole log, however long it is."""

import time
from pathlib import Path
from uuid import uuid4

from workers.host.exits import diagnose_attempt
from workers.host.instance_files import Attempt, InstanceFiles

CAUSE = b"(EngineCore pid=7) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
CHATTER = b'INFO:     127.0.0.1:4242 - "GET /health HTTP/1.1" 200 OK\n'


def test_a_cause_at_the_beginning_of_a_log_of_40_megabytes_is_found(tmp_path: Path) -> None:
    files = InstanceFiles(tmp_path / str(uuid4()))
    log = files.log(1)
    log.parent.mkdir(parents=True)
    log.write_bytes(CAUSE + CHATTER * (40 * 2**20 // len(CHATTER)))
    attempt = Attempt(
        number=1, start=1, pid=7, argv=[], environment={}, started_at=time.time() - 60, ended_at=time.time(),
        exit_code=1, asked=False, killed=False, log_bytes=log.stat().st_size, reason="", failure=None,
    )  # fmt: skip
    found = diagnose_attempt(files, attempt)
    assert found.code == "memory.out_of_memory"
    assert found.evidence[0].line == 1
