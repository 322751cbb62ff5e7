"""ONNX models: loading and saving, names and types, inlining, and swapping of convolutions."""
