"""Clocks, rounds in turn, runs back to back, one convolution alone, suites of layers."""
