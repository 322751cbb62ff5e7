"""Data sets: download, file formats, and synthetic data."""
