"""Quantisation with calibration."""

from llmcompressor.modifiers.quantization import QuantizationModifier


class GPTQModifier(QuantizationModifier):
    """As if it looked at activations."""

    calibrated = True
