"""Quantisation without calibration."""


class QuantizationModifier:
    """Rounds to the nearest."""

    calibrated = False

    def __init__(self, *, targets: str, scheme: str, ignore: list[str]) -> None:
        assert targets == "Linear"
        self.scheme, self.ignore = scheme, ignore
