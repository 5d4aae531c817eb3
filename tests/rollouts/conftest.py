"""A gateway with its controller, and with it the driver of rollouts; engines that can be made slow, wrong or dead."""

from tests.gateway.test_controller import controlled, engine, place

__all__ = ["controlled", "engine", "place"]
