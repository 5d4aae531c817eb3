"""Benchmarks."""

from django.apps import AppConfig


class BenchmarksConfig(AppConfig):
    """What instances can do, measured."""

    name = "console.benchmarks"

    def ready(self) -> None:
        """Name the handler of benchmark jobs."""
        from console.benchmarks import handlers

        handlers.register_handlers()
