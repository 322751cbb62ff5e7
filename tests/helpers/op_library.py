"""The libraries of custom ops in tests/op_library, and a model that needs the first."""

from __future__ import annotations

from pathlib import Path

import onnx
from build_tools import REPOSITORY, cmake
from onnx import helper
from swap_models import make_model, tensor_info, weights

SOURCE = REPOSITORY / "tests" / "op_library"


def build_op_libraries(folder: Path) -> Path:
    """Build libtwice.so, and two that cannot be registered, in `folder`, and return that."""
    for arguments in (("-S", SOURCE, "-B", folder), ("--build", folder)):
        done = cmake(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


def model_of_twice(batch: int | str = "n") -> onnx.ModelProto:
    """Return test.Twice around a Conv of 3x3 from x [batch, 3, 8, 8], of shapes that only a run tells."""
    nodes = [
        helper.make_node("Twice", ["x"], ["t"], name="before", domain="test"),
        helper.make_node("Conv", ["t", "w"], ["c"], name="conv"),
        helper.make_node("Twice", ["c"], ["y"], name="behind", domain="test"),
    ]
    model = make_model(nodes, [weights("w", 4, 3, 3, 3)], inputs=[tensor_info("x", batch, 3, 8, 8)])
    model.opset_import.append(helper.make_opsetid("test", 1))
    return model
