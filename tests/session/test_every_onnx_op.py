"""`compare` takes every op of ONNX that ONNX Runtime runs, beside a Conv and behind one."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import convswap
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

pytestmark = pytest.mark.extended

# Fewer cases than this mean that they are not found as they were: 172 with ONNX 1.23 and ONNX Runtime 1.32.
LEAST = 140
UserInputs = dict[str, Any]


def cases() -> list[tuple[onnx.ModelProto, UserInputs]]:
    """Return the first node case of every op that ONNX Runtime runs, with what ONNX feeds it."""
    # Some of the 1,800 that are built warn.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        collected = [case for case in collect_testcases(None) if case.model is not None]
    of_op: dict[str, Any] = {}
    for case in collected:
        of_op.setdefault(case.model.graph.node[0].op_type, case)
    found = []
    for case in of_op.values():
        values = (held(value) for value in case.data_sets[0][0])
        fed = {one.name: value for one, value in zip(case.model.graph.input, values, strict=False)}
        if runs(case.model, fed):
            found.append((case.model, fed))
    assert len(found) >= LEAST
    return found


def held(value: Any) -> Any:
    """Return what a case feeds as `convswap.compare` takes it."""
    if isinstance(value, onnx.SequenceProto):
        return numpy_helper.to_list(value)
    if isinstance(value, onnx.OptionalProto):
        return numpy_helper.to_optional(value)
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def runs(model: onnx.ModelProto, fed: UserInputs) -> bool:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    providers = ["CPUExecutionProvider"]
    try:
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers).run(None, fed)
    except Exception:  # Whatever ONNX Runtime has against a case: it is not asked for here.
        return False
    return True


def beside_a_conv(model: onnx.ModelProto, fed: UserInputs) -> Iterator[tuple[onnx.ModelProto, UserInputs]]:
    """Yield the model with a Conv that has nothing to do with it."""
    image, weights = np.linspace(-1, 1, 36, dtype=np.float32), np.linspace(-1, 1, 18, dtype=np.float32)
    both = with_conv(model, "conv_x", "conv_y", weights.reshape(2, 1, 3, 3), at=len(model.graph.node))
    both.graph.input.append(helper.make_tensor_value_info("conv_x", onnx.TensorProto.FLOAT, [1, 1, 6, 6]))
    both.graph.output.append(helper.make_tensor_value_info("conv_y", onnx.TensorProto.FLOAT, [1, 2, 4, 4]))
    yield both, {**fed, "conv_x": image.reshape(1, 1, 6, 6)}


def behind_a_conv(model: onnx.ModelProto, fed: UserInputs) -> Iterator[tuple[onnx.ModelProto, UserInputs]]:
    """Yield the model with a Conv that changes nothing before each input that a Conv can have."""
    for name, value in fed.items():
        is_image = isinstance(value, np.ndarray) and value.dtype == np.float32 and 3 <= value.ndim <= 5
        if is_image and value.size:
            channels, axes = value.shape[1], value.ndim - 2
            identity = np.eye(channels, dtype=np.float32).reshape(channels, channels, *(1,) * axes)
            behind = onnx.ModelProto.FromString(model.SerializeToString())
            for node in behind.graph.node:
                node.input[:] = ["conv_y" if own == name else own for own in node.input]
            behind = with_conv(behind, name, "conv_y", identity, at=0)
            if runs(behind, fed):
                yield behind, fed


def with_conv(model: onnx.ModelProto, x: str, y: str, weights: np.ndarray, at: int) -> onnx.ModelProto:
    made = onnx.ModelProto.FromString(model.SerializeToString())
    made.graph.node.insert(at, helper.make_node("Conv", [x, "conv_w"], [y], name="conv"))
    made.graph.initializer.append(numpy_helper.from_array(weights, "conv_w"))
    if not any(opset.domain in ("", "ai.onnx") for opset in made.opset_import):
        made.opset_import.append(helper.make_opsetid("", 13))
    return made


def test_the_answers_of_every_op_are_found_to_agree():
    wrong, swapped = {}, 0
    for case in cases():
        made = [*beside_a_conv(*case), *behind_a_conv(*case)]
        for number, (model, fed) in enumerate(made):
            op = f"{case[0].graph.node[0].op_type} {'behind' if number else 'beside'}"
            try:
                found = convswap.compare(model, device="cpu", inputs=fed, fuse=True, time_layers=False)
            except Exception as error:  # Also what is no refusal: each op is to be told of.
                wrong[op] = f"{type(error).__name__}: {error}"
            else:
                swapped += bool(found.swapped)
                if not found.within_tolerance:
                    wrong[op] = f"the answers differ; {'; '.join(found.notes)}"
    assert wrong == {}
    assert swapped > 150
