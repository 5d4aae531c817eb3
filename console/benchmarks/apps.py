"""Benchmarks."""

from django.apps import AppConfig


class BenchmarksConfig(AppConfig):
    """What instances can do, measured."""

    name = "console.benchmarks"

    def ready(self) -> None:
        """Name the handler of benchmark jobs, who keeps the gates of deployments, and who has measured layouts."""
        from console.benchmarks import handlers, layouts
        from console.benchmarks.gates import Keeper
        from console.deployments import gates, layouts_seen

        handlers.register_handlers()
        gates.keep_by(Keeper())
        layouts_seen.measured_by(layouts.measured)
