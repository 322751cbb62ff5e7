"""What is installed, what is missing, and what to type."""
