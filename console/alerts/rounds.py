"""What comes round: rules are evaluated and messages sent, one process at a time."""

from console.alerts import evaluation, sending
from console.common.broker import alone, connection
from console.jobs.reconcile import ingest_is_current

LOCK = "console:alerts:round"
LOCK_SECONDS = 60
PRUNE_EVERY = 3600
PRUNED = "console:alerts:pruned"


def run() -> None:
    """One round, unless another process is at it. Without fresh reports nothing is concluded: what is late is not gone."""
    with alone(LOCK, seconds=LOCK_SECONDS) as is_ours:
        if not is_ours:
            return
        if ingest_is_current():
            evaluation.evaluate_all()
        sending.send_due()
        if connection().set(PRUNED, "1", nx=True, ex=PRUNE_EVERY):
            sending.prune()
