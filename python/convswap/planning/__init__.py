"""How each convolution of a model is computed and why: explained, measured, compiled ahead."""
