"""ONNX models: reading and saving, names and types, inlining, and the swap of their convolutions."""
