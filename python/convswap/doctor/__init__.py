"""The check of the installation: what is installed, what is missing, and what to type."""
