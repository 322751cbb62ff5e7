"""ONNX Runtime and the card: packages, devices, the op library, sessions, layers, the tuning table."""
