"""ONNX's own Conv cases, swapped and in override mode, against the outputs that ONNX stores."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conv_cases import sum_of_magnitudes
from each_case import each
from onnx import helper, numpy_helper
from onnx.backend.test.case import node
from op_sessions import ROUNDING
from our_sessions import either_way, our_session

# Listed by name, because collecting them takes seconds. The tests below check that none is missing.
NODE_CASES = (
    "test_basic_conv_with_padding",
    "test_basic_conv_without_padding",
    "test_conv_with_autopad_same",
    "test_conv_with_strides_and_asymmetric_padding",
    "test_conv_with_strides_no_padding",
    "test_conv_with_strides_padding",
)
MODELS = Path(onnx.__file__).parent / "backend/test/data/pytorch-converted"
CONV_MODELS = sorted(
    path.name
    for path in MODELS.iterdir()
    if path.name.startswith("test_Conv") and "Transpose" not in path.name
)


@dataclass(frozen=True)
class OnnxCase:
    """A model of one Conv, its inputs, and the output that ONNX expects."""

    model: onnx.ModelProto
    inputs: dict[str, np.ndarray]
    expected: np.ndarray

    @property
    def arrays(self) -> list[np.ndarray]:
        """x, w and, if the node has one, b."""
        constants = {value.name: numpy_helper.to_array(value) for value in self.model.graph.initializer}
        return [{**constants, **self.inputs}[name] for name in self.model.graph.node[0].input]

    @property
    def attributes(self) -> dict[str, Any]:
        values = {a.name: helper.get_attribute_value(a) for a in self.model.graph.node[0].attribute}
        return {name: v.decode() if isinstance(v, bytes) else v for name, v in values.items()}

    def check(self, y: np.ndarray, device: str) -> None:
        """Assert that `y` equals ONNX's output, up to the rounding of both sums.

        Our sum rounds as the device does; the stored output was computed in float32.
        conv_cases.assert_within_rounding explains the bound of each.
        """
        unit, operand = ROUNDING[device]
        x, w, *b = self.arrays
        terms = w[0].size + 3
        bound = (
            1.01 * (2 * operand + terms * (unit + 2.0**-24)) * sum_of_magnitudes(x, w, *b, **self.attributes)
        )
        assert y.shape == self.expected.shape and y.size > 0
        wrong = np.argwhere(~(np.abs(y - self.expected) <= bound))
        assert wrong.size == 0, f"{len(wrong)} of {y.size} outputs are wrong, the first at {wrong[0]}"


@pytest.fixture(scope="session")
def node_cases() -> dict[str, OnnxCase]:
    """Return the node cases whose graph is one Conv."""
    # `collect_testcases` would also build the cases of all other operators, for many seconds.
    importlib.import_module("onnx.backend.test.case.node.conv")
    cases = {}
    for case in node._NodeTestCases:
        if is_only_conv(case.model):
            ((inputs, (expected,)),) = case.data_sets
            names = [value.name for value in case.model.graph.input]
            cases[case.name] = OnnxCase(case.model, dict(zip(names, inputs, strict=True)), expected)
    return cases


def is_only_conv(model: onnx.ModelProto) -> bool:
    return [(node.domain, node.op_type) for node in model.graph.node] == [("", "Conv")]


def read_model(name: str) -> OnnxCase:
    """Return a case of `pytorch-converted`."""

    def tensor(file: str) -> np.ndarray:
        return numpy_helper.to_array(onnx.load_tensor(MODELS / name / "test_data_set_0" / file))

    model = onnx.load(MODELS / name / "model.onnx")
    return OnnxCase(model, {model.graph.node[0].input[0]: tensor("input_0.pb")}, tensor("output_0.pb"))


@pytest.mark.extended
def test_all_six_node_cases_of_conv_are_here(node_cases):
    assert len(NODE_CASES) == 6
    assert sorted(node_cases) == sorted(NODE_CASES)


def test_all_26_models_of_conv_are_here():
    assert len(CONV_MODELS) == 26
    assert all(is_only_conv(read_model(name).model) for name in CONV_MODELS)


@either_way
@each("name", NODE_CASES)
def test_every_node_case_gives_what_onnx_stores(name, way, device, node_cases):
    case = node_cases[name]
    case.check(our_session(case.model, way, device).run(None, case.inputs)[0], device)


@either_way
@each("name", CONV_MODELS)
def test_every_conv_model_gives_what_onnx_stores(name, way, device):
    case = read_model(name)
    case.check(our_session(case.model, way, device).run(None, case.inputs)[0], device)
