"""Fast convolutions for ONNX models in ONNX Runtime."""
