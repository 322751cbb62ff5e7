"""What teaches: the ladder of kernels, the lab for a kernel of one's own, and the study of AlexNet's time.

It stands on the product's other rooms, and none of them knows of it but the command line.
"""
