"""`python -m bench.fetch ENDPOINT REPOSITORY CACHE`: one download in a process of its own; prints its peak memory in bytes."""

import sys
from pathlib import Path

from workers.weights.download import Downloader
from workers.weights.download_types import DownloadRequest
from workers.weights.hub import Source, SourceKind, lookup, select_files


def main() -> None:
    """Look the repository up, fetch what an engine needs, say how much memory it took."""
    endpoint, repository, cache = sys.argv[1:4]
    source = Source(SourceKind.MIRROR, endpoint)
    facts = lookup(source, repository)
    files = select_files(facts.files).files
    Downloader(DownloadRequest(source, repository, facts.commit, files), Path(cache)).run()
    print(peak_bytes())


def peak_bytes() -> int:
    """The most memory that this program had. getrusage would count what the process was before it became this program."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))


if __name__ == "__main__":
    main()
