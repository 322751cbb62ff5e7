"""What follows a convolution and can become part of it: biases, activations, residuals, pooling."""
