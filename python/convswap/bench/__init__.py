"""Benchmarks against the default provider: the layers of a suite alone, and the first run of a model."""
