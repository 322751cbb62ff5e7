"""What must hold on the oldest ONNX Runtime, in an environment with neither onnx nor convswap.

tests/test_oldest.py runs this file with the Python of that environment, and writes beforehand what it needs:
`index.json` with names and expectations, the models, and for each case an .npz file with inputs, the float64
reference and the error allowed for each output.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

LIBRARY = os.environ["CONVSWAP_LIBRARY"]
FILES = Path(os.environ["CONVSWAP_OLDEST_FILES"])
INDEX = json.loads((FILES / "index.json").read_text())
CASES = INDEX["cases"]
PROVIDERS = ["CPUExecutionProvider"]


def make_session(model: str, **entries: str) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    options.register_custom_ops_library(LIBRARY)
    return onnxruntime.InferenceSession(str(FILES / model), options, providers=PROVIDERS)


def feeds(arrays) -> dict[str, np.ndarray]:
    return {name: arrays[name] for name in arrays.files if name not in ("reference", "bound")}


def check(y: np.ndarray, arrays) -> None:
    assert y.shape == arrays["reference"].shape
    assert np.all(np.abs(y - arrays["reference"]) <= arrays["bound"])


def test_environment_is_the_oldest():
    assert onnxruntime.__version__ == INDEX["onnxruntime"]
    assert int(np.__version__.split(".")[0]) < 2
    assert importlib.util.find_spec("onnx") is None
    assert importlib.util.find_spec("convswap") is None


@pytest.mark.parametrize("name", CASES)
def test_op_computes_the_truth_and_infers_its_shape(name):
    arrays = np.load(FILES / f"{name}.npz")
    session = make_session(f"{name}.onnx")
    check(session.run(None, feeds(arrays))[0], arrays)
    assert tuple(session.get_outputs()[0].shape) == arrays["reference"].shape


@pytest.mark.parametrize("name", INDEX["element_types"])
def test_every_element_type_is_computed(name):
    arrays = np.load(FILES / f"{name}.npz")
    check(make_session(f"{name}.onnx").run(None, feeds(arrays))[0], arrays)


@pytest.mark.parametrize("name", INDEX["fused"])
def test_inputs_may_be_absent_before_present_ones(name):
    arrays = np.load(FILES / f"{name}.npz")
    check(make_session(f"{name}.onnx").run(None, feeds(arrays))[0], arrays)


def test_symbolic_dimensions_are_named_and_take_every_shape():
    session = make_session("symbolic.onnx")
    batch, filters, height, width = session.get_outputs()[0].shape
    assert (batch, filters) == ("N", 4)
    assert isinstance(height, str) and isinstance(width, str) and height != width
    for name in INDEX["symbolic"]:
        arrays = np.load(FILES / f"{name}.npz")
        check(session.run(None, feeds(arrays))[0], arrays)


@pytest.mark.parametrize(("model", "message"), INDEX["creation_errors"])
def test_misfit_is_refused_when_the_session_is_made(model, message):
    with pytest.raises(Exception, match=re.escape(f"convswap Conv node 'conv1': {message}")):
        make_session(model)


@pytest.mark.parametrize(("arrays", "message"), INDEX["run_errors"])
def test_misfit_is_refused_at_the_run_and_the_session_goes_on(arrays, message):
    session = make_session("undeclared.onnx")
    right = np.load(FILES / "undeclared.npz")
    for _ in range(2):
        with pytest.raises(Exception, match=re.escape(f"convswap Conv node 'conv1': {message}")):
            session.run(None, feeds(np.load(FILES / arrays)))
        check(session.run(None, feeds(right))[0], right)


def test_concurrent_runs_give_the_bits_of_a_run_alone():
    name = CASES[-1]
    session = make_session(f"{name}.onnx")
    arrays = feeds(np.load(FILES / f"{name}.npz"))
    alone = session.run(None, arrays)[0]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: session.run(None, arrays)[0], range(64)))
    assert all(np.array_equal(alone, y) for y in results)


def test_many_sessions_share_the_library():
    name = CASES[0]
    arrays = np.load(FILES / f"{name}.npz")
    for session in [make_session(f"{name}.onnx") for _ in range(8)]:
        check(session.run(None, feeds(arrays))[0], arrays)


def test_options_that_are_registered_twice_make_a_session():
    options = onnxruntime.SessionOptions()
    for _ in range(2):
        options.register_custom_ops_library(LIBRARY)
    onnxruntime.InferenceSession(str(FILES / f"{CASES[0]}.onnx"), options, providers=PROVIDERS)


def test_override_is_refused_with_both_versions():
    with pytest.raises(Exception, match=r"needs ONNX Runtime 1\.18 or newer and this is 1\.17\.3"):
        make_session(f"{CASES[0]}.onnx", **{"convswap.override": "1"})


def test_override_that_is_off_is_no_obstacle():
    make_session(f"{CASES[0]}.onnx", **{"convswap.override": "0"})
