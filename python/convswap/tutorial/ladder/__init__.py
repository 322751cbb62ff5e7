"""Every step from plain loops to tensor cores: measured, checked, and its text."""
