"""Run a swapped model in ONNX Runtime.

`python examples/load.py` runs a course network, `python examples/load.py model.onnx` your model.
"""

import argparse

import convswap
import numpy as np
import onnxruntime
from convswap.export import export_network

parser = argparse.ArgumentParser(description="Run a model whose Conv nodes are swapped.")
parser.add_argument("model", nargs="?", help="an ONNX file; default: a course network")
path = parser.parse_args().model

providers = ["CPUExecutionProvider"]
if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
    providers.insert(0, "CUDAExecutionProvider")

swapped = convswap.swap(path or export_network("ece408-2019fa"))
options = onnxruntime.SessionOptions()
convswap.register(options)
session = onnxruntime.InferenceSession(swapped.to_proto().SerializeToString(), options, providers=providers)

# Symbolic dimensions are 1. The values count from 0 to 255, repeatedly, like pixels.
shapes = {x.name: [size if isinstance(size, int) else 1 for size in x.shape] for x in session.get_inputs()}
feeds = {name: np.resize(np.arange(256, dtype=np.float32), shape) for name, shape in shapes.items()}
outputs = session.run(None, feeds)

print(f"{len(swapped.swapped)} Conv nodes swapped, running on {session.get_providers()[0]}")
for output, value in zip(session.get_outputs(), outputs, strict=True):
    print(output.name, list(value.shape), *(f"{number:.6g}" for number in value.ravel()[:10]))
