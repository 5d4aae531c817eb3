"""Xid errors: what the NVIDIA driver writes into the kernel's log when a GPU fails."""

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

from workers.host_facts import Xid, XidLog

_KEPT = 20
_JOURNAL_SECONDS = 10.0
_LINE = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+),?\s*(.*)")


def read_xids(kmsg: Path = Path("/dev/kmsg")) -> XidLog:
    """Errors since boot as far as the log still has them, from /dev/kmsg or journalctl; without either, the reason."""
    try:
        return XidLog(source="/dev/kmsg", events=parse_kmsg(_read_kmsg(kmsg), boot_time=_boot_time()))
    except OSError as error:
        return _from_journal(f"/dev/kmsg: {error.strerror}")


def parse_kmsg(text: str, *, boot_time: float) -> list[Xid]:
    """Records such as `4,1234,5678901,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.` (µs since boot)."""
    found = []
    for line in text.splitlines():
        head, _semicolon, message = line.partition(";")
        fields = head.split(",")
        if (match := _LINE.search(message)) and len(fields) > 2 and fields[2].isdigit():
            found.append(_xid(match, boot_time + int(fields[2]) / 1e6))
    return found[-_KEPT:]


def parse_journal(text: str) -> list[Xid]:
    """Lines of `journalctl -k -o short-unix`: seconds since the epoch first."""
    found = []
    for line in text.splitlines():
        at, _space, message = line.partition(" ")
        if (match := _LINE.search(message)) and re.fullmatch(r"\d+(\.\d+)?", at):
            found.append(_xid(match, float(at)))
    return found[-_KEPT:]


def _xid(match: re.Match[str], at: float) -> Xid:
    return Xid(at=round(at, 3), bus_id=match[1], code=int(match[2]), text=match[3].strip()[:300])


def _read_kmsg(path: Path) -> str:
    # Each read gives one record; at the end there is nothing more, and it says so instead of waiting.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    records = []
    try:
        while True:
            try:
                record = os.read(descriptor, 8192)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # overwritten while it was read: the next one is the oldest that is left
            if not record:
                break
            if b"NVRM" in record:
                records.append(record.decode(errors="replace"))
    finally:
        os.close(descriptor)
    return "".join(records)


def _from_journal(problem: str) -> XidLog:
    tool = shutil.which("journalctl")
    if tool is None:
        return XidLog(problem=f"{problem}; there is no journalctl")
    argv = [tool, "-k", "-o", "short-unix", "--no-pager", "-q", "-g", "NVRM: Xid", "-n", str(_KEPT)]
    try:
        ended = subprocess.run(argv, capture_output=True, timeout=_JOURNAL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return XidLog(problem=f"{problem}; journalctl did not answer")
    said = ended.stderr.decode(errors="replace").strip()
    if "ermission" in said or "not seeing messages" in said:
        return XidLog(problem=f"{problem}; journalctl: the agent's user is not in group adm or systemd-journal")
    return XidLog(source="journalctl", events=parse_journal(ended.stdout.decode(errors="replace")))


def _boot_time() -> float:
    return time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)
