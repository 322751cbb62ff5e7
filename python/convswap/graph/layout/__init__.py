"""Choose the layout of the tensors between Convs, NCHW or NHWC, and write it into the model."""
