"""Arguments of unusual types are accepted if their meaning is clear, and refused in one line otherwise."""

from __future__ import annotations

import convswap
import numpy as np
import pytest
from convswap.bench.suite_runs import run_suite
from convswap.errors import ConvswapError
from convswap.planning.warm import warm
from convswap.tutorial.lab.scaffold import template
from swap_models import three_convs

FUNCTIONS = {
    "compare": lambda model, **arguments: convswap.compare(
        model, device="cpu", time_layers=False, **arguments
    ),
    "optimize": lambda model, **arguments: convswap.optimize(model, device="cpu", **arguments),
    "explain": convswap.explain,
    "tune": lambda model, **arguments: convswap.tune(model, device="cpu", **arguments),
    "swap": convswap.swap,
    "warm": lambda model, **arguments: warm(model, **{"compute_capabilities": 90, **arguments}),
    "bench": lambda _, **arguments: list(run_suite("course", device="cpu", **arguments)),
    "lab": lambda _, **arguments: convswap.lab.run(template("course"), device="cpu", **arguments),
    "override_session": convswap.override_session,
}


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("compare", {"batch": "4"}, "batch must be a whole number, but '4' was given"),
        ("compare", {"images": [4]}, "images must be a whole number, but [4] was given"),
        ("explain", {"batch": 4.0}, "batch must be a whole number, but 4.0 was given"),
        ("tune", {"runs": True}, "runs must be a whole number, but True was given"),
        ("optimize", {"batches": "1,2"}, "batches were given as '1,2'; expected whole numbers from 1 on"),
        ("optimize", {"batches": [1, 2.5]}, "batches were given as [1, 2.5]; expected whole numbers"),
        ("optimize", {"batches": 0}, "batch must be at least 1, but 0 was given"),
        ("warm", {"batches": ["4"]}, "batches were given as ['4']; expected whole numbers from 1 on"),
        ("warm", {"batches": []}, "batches were given as []; expected each once, and one at least"),
        ("warm", {"compute_capabilities": []}, "no compute capability was given"),
        ("warm", {"compute_capabilities": ["sm_90"]}, "compute capability 'sm_90': expected one such as 8.0"),
        ("bench", {"batches": "4"}, "batches were given as '4'; expected whole numbers from 1 on"),
        ("bench", {"layers": ["conv1"]}, "['conv1'] is not a regular expression; expected text"),
        ("explain", {"compute_capability": [90]}, "compute capability [90]: expected one such as 8.0"),
        ("swap", {"only": ["a"]}, "['a'] is not a regular expression; expected text that matches node names"),
        ("tune", {"algorithm": ["direct"]}, "unknown algorithm"),
        ("swap", {"algorithm": 5}, "unknown algorithm 5; known: auto, "),
        ("swap", {"precision": 5}, "unknown precision 5; known: ieee, tf32"),
        ("compare", {"tolerance": "0.1"}, "tolerance must be a number from 0 on, but '0.1' was given"),
        (
            "explain",
            {"op_libraries": 5},
            "an object of type int was given; expected the file of an op library",
        ),
        (
            "optimize",
            {"output": ["o.onnx"]},
            "type list was given; expected the path of an .onnx file to write",
        ),
        ("lab", {"seconds": "4"}, "seconds must be above 0 and at most 3600, but '4' were given"),
    ],
)
def test_other_types_are_refused_in_one_line(name, arguments, expected):
    with pytest.raises(ConvswapError) as raised:
        FUNCTIONS[name](three_convs(), **arguments)
    assert expected in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["compare", "optimize", "explain", "tune", "warm", "override_session"])
@pytest.mark.parametrize("model", [None, ["model.onnx"], b"model.onnx"], ids=repr)
def test_a_model_of_another_type_is_refused_in_one_line(name, model):
    if name == "override_session" and isinstance(model, bytes):
        pytest.skip("takes a model as bytes")
    with pytest.raises(ConvswapError, match=f"^an object of type {type(model).__name__} was given; expected"):
        FUNCTIONS[name](model)


@pytest.mark.parametrize("capability", [90, np.int64(90), 9.0, "9.0", "90"], ids=repr)
def test_a_compute_capability_may_be_number_or_text(capability):
    plan = convswap.explain(three_convs(), compute_capability=capability)
    assert plan.device.title == "a typical card of compute capability 9.0"


@pytest.mark.parametrize("batches", [4, np.int64(4), [4], np.array([4]), range(4, 5)], ids=repr)
def test_one_batch_may_be_given_for_several(batches):
    rows = FUNCTIONS["bench"](None, layers="2017-conv1", batches=batches)
    assert [row["batch"] for row in rows] == [4]
