"""The plans of a model's convolutions: explained, tuned by measurement, compiled ahead of time."""
