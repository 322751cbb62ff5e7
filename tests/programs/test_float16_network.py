"""benchmarks/float16_network.py: a network in float16, for comparisons."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from build_tools import run_script
from convswap import export, register, swap
from onnx import TensorProto

pytestmark = pytest.mark.slow
NETWORK = "ece408-2019sp"


def answers(model: onnx.ModelProto, image: np.ndarray) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    register(options)
    session = onnxruntime.InferenceSession(
        swap(model).to_proto().SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, {session.get_inputs()[0].name: image})[0]


def test_every_tensor_is_float16_and_the_answers_are_the_network_s(tmp_path):
    file = tmp_path / "network.onnx"
    done = run_script("float16_network", NETWORK, file)
    assert done.returncode == 0, done.stderr
    small, original = onnx.load(file), export.export_network(NETWORK)
    onnx.checker.check_model(small, full_check=True)
    values = (*small.graph.input, *small.graph.output, *small.graph.value_info)
    types = {value.type.tensor_type.elem_type for value in values}
    types |= {tensor.data_type for tensor in small.graph.initializer}
    assert TensorProto.FLOAT16 in types and TensorProto.FLOAT not in types
    shape = [size.dim_value for size in small.graph.input[0].type.tensor_type.shape.dim[1:]]
    image = np.random.default_rng(0).standard_normal((2, *shape)).astype(np.float16)
    expected, found = answers(original, image.astype(np.float32)), answers(small, image)
    # What `compare` allows float16.
    assert np.linalg.norm(found - expected) <= 1e-2 * np.linalg.norm(expected)


def test_an_unknown_network_is_told_in_a_line(tmp_path):
    done = run_script("float16_network", "ece408-2019", tmp_path / "network.onnx")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("unknown network 'ece408-2019'; did you mean ")
    assert not (tmp_path / "network.onnx").exists()
