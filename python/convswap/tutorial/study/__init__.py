"""The parts of AlexNet's time over batch sizes."""
