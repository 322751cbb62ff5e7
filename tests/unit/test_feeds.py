"""Random feeds have the declared types and shapes, are reproducible, and are not all zero."""

from __future__ import annotations

import numpy as np
import pytest
from convswap.errors import ConvswapError
from convswap.inputs.feeds import ImageSource, RandomSource, declared_inputs, fixed_batch, random_feeds
from convswap.inputs.model_with_data import RANDOM, ModelWithData, source_of
from convswap.runtime.device import Device
from onnx import TensorProto, helper
from swap_models import model_with_inputs, tensor_info, weights


def test_values_have_the_declared_types_and_shapes():
    kinds = {
        "half": (TensorProto.FLOAT16, np.float16),
        "single": (TensorProto.FLOAT, np.float32),
        "double": (TensorProto.DOUBLE, np.float64),
        "byte": (TensorProto.UINT8, np.uint8),
        "long": (TensorProto.INT64, np.int64),
        "flag": (TensorProto.BOOL, np.bool_),
    }
    declared = [tensor_info(name, 3, 5, element_type=kind) for name, (kind, _) in kinds.items()]
    feeds = random_feeds(declared_inputs(model_with_inputs(*declared)), batch=1, seed=0)
    assert {name: values.dtype for name, values in feeds.items()} == {
        name: np.dtype(kind) for name, (_, kind) in kinds.items()
    }
    assert all(values.shape == (3, 5) for values in feeds.values())


def test_whole_numbers_are_zero_or_one_and_floats_are_never_all_zero():
    declared = [
        tensor_info("tokens", 40, element_type=TensorProto.INT32),
        tensor_info("x", 40),
    ]
    feeds = random_feeds(declared_inputs(model_with_inputs(*declared)), batch=1, seed=3)
    assert set(feeds["tokens"].tolist()) == {0, 1}
    assert np.count_nonzero(feeds["x"]) == 40


def test_batch_goes_to_symbolic_leading_dimensions_and_their_namesakes_only():
    declared = [tensor_info("x", "n", 3, "h"), tensor_info("y", 7, "n"), tensor_info("z", "m", None)]
    feeds = random_feeds(declared_inputs(model_with_inputs(*declared)), batch=4, seed=0)
    assert {name: values.shape for name, values in feeds.items()} == {
        "x": (4, 3, 1),
        "y": (7, 4),
        "z": (4, 1),
    }


def test_same_seed_gives_the_same_values_and_another_seed_others():
    declared = declared_inputs(model_with_inputs(tensor_info("x", "n", 8)))
    first, again, other = (random_feeds(declared, 2, seed)["x"] for seed in (5, 5, 6))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_input_with_an_initializer_is_not_fed():
    model = model_with_inputs(tensor_info("x", 1), tensor_info("w", 3), initializers=[weights("w", 3)])
    assert [image_input.name for image_input in declared_inputs(model)] == ["x"]


@pytest.mark.parametrize("kind", ["COMPLEX64", "FLOAT4E2M1"])
def test_element_type_that_cannot_be_fed_is_refused_by_name(kind):
    declared = tensor_info("pairs", 2, element_type=TensorProto.DataType.Value(kind))
    with pytest.raises(ConvswapError, match=f"'pairs' has elements of type {kind.lower()}.* casts it"):
        declared_inputs(model_with_inputs(declared))


@pytest.mark.parametrize("kind", ["BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E5M2"])
def test_random_numbers_that_numpy_has_no_type_for_are_never_all_zero(kind):
    declared = declared_inputs(
        model_with_inputs(tensor_info("x", 40, element_type=TensorProto.DataType.Value(kind)))
    )
    values = random_feeds(declared, batch=1, seed=0)["x"]
    assert values.dtype == helper.tensor_dtype_to_np_dtype(TensorProto.DataType.Value(kind))
    assert np.count_nonzero(values.astype(np.float32)) > 35


@pytest.mark.parametrize("kind", ["INT4", "UINT4"])
def test_random_numbers_of_four_bits_are_zero_or_one(kind):
    declared = declared_inputs(
        model_with_inputs(tensor_info("x", 40, element_type=TensorProto.DataType.Value(kind)))
    )
    assert set(random_feeds(declared, batch=1, seed=0)["x"].astype(int).tolist()) == {0, 1}
    assert declared[0].is_integer


def test_strings_are_not_made_up_and_the_option_that_gives_them_is_named():
    declared = declared_inputs(model_with_inputs(tensor_info("words", 2, element_type=TensorProto.STRING)))
    with pytest.raises(ConvswapError, match=r"'words' \[2\] takes strings, .* give them with --inputs, or "):
        random_feeds(declared, batch=1, seed=0)


@pytest.mark.parametrize("optional", [False, True])
def test_sequences_and_optionals_are_refused_with_the_option_that_feeds_them(optional):
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    if optional:
        kind = helper.make_optional_type_proto(kind)
    expected = f"'parts' is {'an optional' if optional else 'a sequence'}, for which .* --inputs, or inputs="
    with pytest.raises(ConvswapError, match=expected):
        declared_inputs(model_with_inputs(helper.make_value_info("parts", kind)))


def test_batch_is_fixed_only_where_no_leading_dimension_is_symbolic():
    def batch(*inputs):
        return fixed_batch(declared_inputs(model_with_inputs(*inputs)))

    assert batch(tensor_info("x", 8, 3)) == 8
    assert batch(tensor_info("x", 8, 3), tensor_info("y", "n")) is None
    assert batch(tensor_info("x")) == 1


def test_random_source_counts_every_sample_once_and_repeats_no_batch():
    source = RandomSource(declared_inputs(model_with_inputs(tensor_info("x", "n", 8))), images=10, batch=4)
    batches = list(source.batches())
    assert [counted for _, counted in batches] == [4, 4, 2]
    assert [feeds["x"].shape[0] for feeds, _ in batches] == [4, 4, 2]
    assert not np.array_equal(batches[0][0]["x"], batches[1][0]["x"])


def test_last_images_fill_up_a_fixed_batch_without_being_counted_twice():
    (image_input,) = declared_inputs(model_with_inputs(tensor_info("x", 4, 1, 2, 2)))
    data = np.arange(6 * 4, dtype=np.float32).reshape(6, 1, 2, 2)
    batches = list(ImageSource(image_input, data, np.zeros(6), batch=4).batches())
    assert [counted for _, counted in batches] == [4, 2]
    assert np.array_equal(batches[1][0]["x"], data[[4, 5, 5, 5]])


def test_images_come_in_order_with_a_smaller_last_batch():
    (image_input,) = declared_inputs(model_with_inputs(tensor_info("x", "n", 1, 2, 2)))
    data = np.arange(5 * 4, dtype=np.float32).reshape(5, 1, 2, 2)
    source = ImageSource(image_input, data, np.zeros(5), batch=2)
    assert np.array_equal(np.concatenate([feeds["x"] for feeds, _ in source.batches()]), data)
    assert np.array_equal(source.first(3)["x"], data[:3])


def test_random_batch_is_the_fixed_one_also_where_fewer_samples_are_asked_for():
    model = model_with_inputs(tensor_info("x", 4, 3))
    source = source_of(ModelWithData("fixed", model, model, RANDOM), 2, None, Device("cpu", "asked for"))
    assert (source.images, source.batch) == (2, 4)
    ((feeds, counted),) = source.batches()
    assert (feeds["x"].shape[0], counted) == (4, 2)
