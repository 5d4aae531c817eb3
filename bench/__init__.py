"""Measurements: `make bench` writes build/bench.json."""
