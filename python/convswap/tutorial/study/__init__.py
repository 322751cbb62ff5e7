"""The study of AlexNet: the parts of its time over batch sizes."""
