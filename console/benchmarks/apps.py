"""Benchmarks."""

from django.apps import AppConfig


class BenchmarksConfig(AppConfig):
    """What instances can do, measured."""

    name = "console.benchmarks"

    def ready(self) -> None:
        """Name the handler of benchmark jobs, and who keeps the gates of deployments."""
        from console.benchmarks import handlers
        from console.benchmarks.gates import Keeper
        from console.deployments import gates

        handlers.register_handlers()
        gates.keep_by(Keeper())
