"""ONNX Runtime's outputs of every kind become named arrays, which are compared."""

from __future__ import annotations

import numpy as np
import pytest
from convswap.reference.metrics import NO_DIFFERENCE, NOT_COMPARABLE, difference_between
from convswap.runtime.values import named_arrays


def arrays_of(output, name: str = "y") -> dict[str, list]:
    return {key: values.tolist() for key, values in named_arrays([name], [output]).items()}


def test_a_tensor_is_itself():
    x = np.ones((2, 3), np.float16)
    assert named_arrays(["a", "b"], [x, x])["b"] is x


def test_a_sequence_has_a_name_for_each_element_and_for_each_in_those():
    assert arrays_of([np.array([1.0]), np.array([2.0, 3.0])]) == {"y[0]": [1.0], "y[1]": [2.0, 3.0]}
    assert arrays_of([[np.array([1])], []]) == {"y[0][0]": [1]}
    assert arrays_of([]) == {}


def test_a_map_has_its_keys_and_its_values_in_the_order_of_the_keys():
    assert arrays_of({7: 0.5, 3: 0.25}) == {"y.keys": [3, 7], "y.values": [0.25, 0.5]}
    assert arrays_of({"b": 1.0, "a": 2.0}) == {"y.keys": ["a", "b"], "y.values": [2.0, 1.0]}


def test_a_batch_of_maps_has_two_arrays_as_well():
    maps = [{0: 0.5, 1: 0.5}, {1: 0.75, 0: 0.25}]
    assert arrays_of(maps) == {"y.keys": [0, 1, 0, 1], "y.values": [0.5, 0.5, 0.25, 0.75]}


def test_a_map_of_tensors_has_each_of_them():
    output = {0: np.array([1.0, 2.0]), 1: np.array([3.0])}
    assert arrays_of(output) == {"y.keys": [0, 1], "y.values[0]": [1.0, 2.0], "y.values[1]": [3.0]}


def test_an_absent_optional_equals_only_another():
    absent = named_arrays(["y"], [None])["y"]
    assert difference_between(absent, absent) == NO_DIFFERENCE
    assert difference_between(np.ones(3), absent) == NOT_COMPARABLE


def test_maps_of_a_classifier_are_compared_by_keys_and_values():
    ours = named_arrays(["y"], [[{0: np.float32(0.5), 1: np.float32(0.5)}]])
    reference = named_arrays(["y"], [[{1: 0.5, 0: 0.5}]])
    assert all(
        difference_between(ours[name], reference[name]) == NO_DIFFERENCE for name in ("y.keys", "y.values")
    )
    other = named_arrays(["y"], [[{0: 0.5, 2: 0.5}]])
    assert difference_between(other["y.keys"], reference["y.keys"]).relative == 0.5


@pytest.mark.parametrize(
    ("values", "others", "share"),
    [
        (["a", "b", "c", "d"], ["a", "b", "x", "d"], 0.25),
        ([1, 2, 3, 4], [1, 2, 3, 4], 0.0),
        ([True, False], [True, True], 0.5),
    ],
)
def test_difference_of_names_is_the_share_that_differs(values, others, share):
    one, other = (named_arrays(["y"], [np.array(each)])["y"] for each in (values, others))
    assert difference_between(one, other).relative == share


def test_shapes_without_an_element_are_the_same():
    assert difference_between(np.zeros((0,)), np.zeros((0, 2, 4))) == NO_DIFFERENCE
    assert difference_between(np.zeros((0,)), np.zeros((1, 2))) == NOT_COMPARABLE
    assert difference_between(np.zeros((2, 1)), np.zeros((1, 2))) == NOT_COMPARABLE
