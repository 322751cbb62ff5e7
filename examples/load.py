"""Run a model whose Conv nodes are swapped for the op library's, in ONNX Runtime.

python examples/load.py               a course network
python examples/load.py model.onnx    any ONNX model with float32 inputs
"""

import argparse

import numpy as np
import onnxruntime

import convswap
from convswap.export import export_network

parser = argparse.ArgumentParser(description="Run a model whose Conv nodes are swapped.")
parser.add_argument("model", nargs="?", help="an ONNX file; default: a course network")
path = parser.parse_args().model

swapped = convswap.swap(path or export_network("ece408-2019fa"))

options = onnxruntime.SessionOptions()
convswap.register(options)
if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
    # Loads the CUDA libraries that pip installed.
    onnxruntime.preload_dlls()
session = onnxruntime.InferenceSession(
    swapped.to_proto().SerializeToString(), options, providers=onnxruntime.get_available_providers()
)

# Symbolic dimensions are 1; the values count up from 0 to 255, again and again, as pixels might.
shapes = {x.name: [size if isinstance(size, int) else 1 for size in x.shape] for x in session.get_inputs()}
feeds = {name: np.resize(np.arange(256, dtype=np.float32), shape) for name, shape in shapes.items()}
outputs = session.run(None, feeds)

print(f"{len(swapped.swapped)} Conv nodes swapped, running on {session.get_providers()[0]}")
for output, value in zip(session.get_outputs(), outputs, strict=True):
    print(output.name, list(value.shape), *(f"{number:.6g}" for number in value.ravel()[:10]))
