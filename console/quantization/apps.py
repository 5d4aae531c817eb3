"""Set-up of quantisation."""

from django.apps import AppConfig


class QuantizationConfig(AppConfig):
    """Smaller models from the ones that are here, made by llm-compressor and compared with their originals."""

    name = "console.quantization"

    def ready(self) -> None:
        """Name the handlers of its jobs."""
        from console.quantization import handlers

        handlers.register_handlers()
