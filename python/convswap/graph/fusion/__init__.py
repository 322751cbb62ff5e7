"""Fusion of a convolution with other nodes: biases, activations, residuals, poolings, depthwise Convs."""
