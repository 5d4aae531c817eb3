"""`python -m bench.fetch ENDPOINT REPOSITORY CACHE`: one download in a process of its own; prints its peak memory in bytes."""

import resource
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
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


if __name__ == "__main__":
    main()
