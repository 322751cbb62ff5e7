"""User inputs are fed unchanged, sample by sample, or refused in one line that says what to do."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from convswap.errors import ConvswapError
from convswap.inputs.feeds import Input, declared_inputs
from convswap.inputs.sample_shapes import shape_notes, shape_notes_on_error
from convswap.inputs.user_inputs import InputData, UserInputSource, user_input_feeds, user_input_source
from onnx import TensorProto, helper
from PIL import ExifTags, Image
from refused import refused
from swap_models import model_with_inputs, tensor_info

INT64 = TensorProto.INT64


def declared(*infos: onnx.ValueInfoProto) -> tuple[Input, ...]:
    return declared_inputs(model_with_inputs(*infos))


IMAGES = declared(tensor_info("x", "n", 3, "h", "w"))
SMALL = declared(tensor_info("x", "n", 3, 4, 6))
GREY = declared(tensor_info("x", 1, 1, 4, 6))
TWO = declared(tensor_info("x", "n", 3), tensor_info("size", 2, element_type=INT64))
# As in speech models, the batch is the second axis of the state.
STATEFUL = declared(
    tensor_info("x", None, None), tensor_info("state", 2, None, 8), tensor_info("rate", element_type=INT64)
)


def counting(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def message(user_values, inputs=SMALL, batch=None, images=None) -> str:
    """Return the error message for the values, which must be one line."""
    with refused() as caught:
        user_input_source(user_values, inputs, batch, images)
    return str(caught.value)


def first_numbers(source: UserInputSource, name: str = "x") -> list[list[float]]:
    """Return the first number of every sample of every batch."""
    return [feeds[name].reshape(len(feeds[name]), -1)[:, 0].tolist() for feeds, _ in source.batches()]


# Mappings and files of arrays


def test_mapping_npz_and_folder_of_npy_are_the_same(tmp_path):
    user_values = {"x": counting(5, 3), "size": np.array([7, 9])}
    np.savez(tmp_path / "inputs.npz", **user_values)
    (tmp_path / "folder").mkdir()
    for name, values in user_values.items():
        np.save(tmp_path / "folder" / f"{name}.npy", values)
    # Metadata files of macOS.
    (tmp_path / "folder" / "._x.npy").write_bytes(b"\0\5\x16\7")
    for values in (
        user_values,
        tmp_path / "inputs.npz",
        str(tmp_path / "inputs.npz"),
        tmp_path / "folder",
    ):
        feeds = user_input_feeds(values, TWO)
        assert {name: array.dtype for name, array in feeds.items()} == {"x": np.float32, "size": np.int64}
        np.testing.assert_array_equal(feeds["x"], user_values["x"])
        np.testing.assert_array_equal(feeds["size"], [7, 9])


def test_one_npy_file_is_the_only_input(tmp_path):
    np.save(tmp_path / "any.npy", counting(2, 3, 4, 6))
    np.testing.assert_array_equal(user_input_feeds(tmp_path / "any.npy", SMALL)["x"], counting(2, 3, 4, 6))
    assert "holds one array without a name, and the inputs are x, size" in message(tmp_path / "any.npy", TWO)


def test_numbers_may_change_their_width_and_whole_ones_become_fractions():
    feeds = user_input_feeds({"x": np.ones((2, 3), np.float64), "size": [1, 2]}, TWO)
    assert (feeds["x"].dtype, feeds["size"].dtype) == (np.float32, np.int64)
    assert user_input_feeds({"x": np.ones((2, 3), np.int8), "size": np.array([1, 2], np.uint8)}, TWO)[
        "x"
    ].all()
    flags = declared(tensor_info("x", 2, element_type=TensorProto.BOOL))
    assert user_input_feeds({"x": [0, 1]}, flags)["x"].tolist() == [False, True]
    (scalar,) = user_input_feeds({"x": 16000}, declared(tensor_info("x", element_type=INT64))).values()
    assert scalar.shape == () and scalar == 16000


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (INT64, [1.5], "'x' [1] takes int64, but float64 was given; convert it to int64"),
        (TensorProto.INT8, [300], "takes int8, which has no 300; give numbers that it can hold"),
        (TensorProto.UINT8, [-1], "takes uint8, which has no -1"),
        (TensorProto.BOOL, [2], "takes bool, which has no 2"),
        (TensorProto.FLOAT16, [1e6], "takes float16, which has no 1000000.0"),
        (TensorProto.FLOAT, ["cat"], "takes float32, but <U3 was given"),
        (TensorProto.FLOAT, [1j], "takes float32, but complex128 was given"),
        (TensorProto.FLOAT, [None], "takes float32, but object was given"),
        (TensorProto.FLOAT, [[1, 2], [3]], "input 'x' was given as a list that is no array"),
        (TensorProto.BFLOAT16, [1e39], "takes bfloat16, which has no 1e+39"),
        (TensorProto.FLOAT8E4M3FN, [500], "takes float8_e4m3fn, which has no 500"),
        (TensorProto.INT4, [8], "takes int4, which has no 8"),
        (TensorProto.INT4, [0.5], "takes int4, but float64 was given"),
        (TensorProto.STRING, [1], "takes strings, but int64 was given; give an array of strings"),
        (TensorProto.STRING, [None], "takes strings, but object was given"),
        (TensorProto.STRING, [b"\xff"], "takes strings, but bytes that are no UTF-8 were given"),
    ],
    ids=str,
)
def test_values_that_the_type_does_not_hold_are_refused(kind, values, expected):
    assert expected in message({"x": values}, declared(tensor_info("x", 1, element_type=kind)))


def test_strings_are_fed_however_numpy_holds_them():
    words = declared(tensor_info("x", 2, element_type=TensorProto.STRING))
    for values in (["a", "bé"], np.array(["a", "bé"], object), np.array([b"a", "bé".encode()])):
        (array,) = user_input_feeds({"x": values}, words).values()
        assert array.dtype.kind == "U" and array.tolist() == ["a", "bé"]


@pytest.mark.parametrize("kind", ["BFLOAT16", "FLOAT8E4M3FN", "INT4", "UINT4"])
def test_numbers_that_numpy_has_no_type_for_are_fed_in_that_type(kind):
    number = TensorProto.DataType.Value(kind)
    dtype, inputs = (
        helper.tensor_dtype_to_np_dtype(number),
        declared(tensor_info("x", 3, element_type=number)),
    )
    for values in ([0, 1, 3], np.array([0, 1, 3]).astype(dtype)):
        (array,) = user_input_feeds({"x": values}, inputs).values()
        assert array.dtype == dtype and array.astype(int).tolist() == [0, 1, 3]
    # An array of this type, which NumPy does not have itself, can also feed a float32 input.
    (array,) = user_input_feeds(
        {"x": np.array([0, 1, 3]).astype(dtype)}, declared(tensor_info("x", 3))
    ).values()
    assert array.dtype == np.float32 and array.tolist() == [0, 1, 3]


def test_infinite_numbers_and_nan_stay():
    user_values = np.array([np.inf, -np.inf, np.nan])
    (array,) = user_input_feeds(
        {"x": user_values}, declared(tensor_info("x", 3, element_type=TensorProto.FLOAT16))
    ).values()
    np.testing.assert_array_equal(array, user_values)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((2, 3, 4), "'x' [n, 3, 4, 6] was given an array of shape [2, 3, 4]; give one of the input's shape"),
        ((2, 3, 4, 5), "was given an array of shape [2, 3, 4, 5]"),
        ((), "was given an array of shape []"),
        ((0, 3, 4, 6), "the values given are of no sample at all"),
    ],
    ids=str,
)
def test_another_shape_is_refused(shape, expected):
    assert expected in message({"x": np.zeros(shape)})


def test_inputs_without_an_element_do_not_say_how_many_samples_there_are():
    # As for detectors: an image without boxes.
    fixed = declared(tensor_info("boxes", 0, 4), tensor_info("x", 2, 3))
    assert first_numbers(
        user_input_source({"boxes": np.zeros((0, 4)), "x": counting(4, 3)}, fixed, None)
    ) == [
        [0, 3],
        [6, 9],
    ]
    refusal = message({"boxes": np.zeros((0, 4)), "x": counting(4, 3)}, fixed, batch=3)
    assert "the model takes batches of 2, by its input 'x' [2, 3], but batch 3 was given" in refusal
    opened = declared(tensor_info("boxes", "k", 4), tensor_info("x", "n", 3))
    source = user_input_source({"boxes": np.zeros((0, 4)), "x": counting(2, 3)}, opened, None)
    ((feeds, count),) = source.batches()
    assert count == 2 and feeds["boxes"].shape == (0, 4) and feeds["x"].shape == (2, 3)
    empty = declared(tensor_info("x", 0, 3))
    assert "of no sample at all" in message({"x": np.zeros((0, 3))}, empty)


def test_other_names_and_missing_inputs_are_refused():
    assert "unknown input 'imagex'; did you mean 'image'?" in message(
        {"imagex": counting(1, 3)}, declared(tensor_info("image", "n", 3))
    )
    assert "unknown input 'pixels'; known: x" in message({"pixels": counting(1, 3, 4, 6)})
    assert (
        message({"x": counting(1, 3)}, TWO)
        == "values were given for x, but the model also needs 'size' [2]; give all of them"
    )
    assert "values were given for no input, but the model also needs 'x'" in message({})
    assert "the model has no inputs; leave them out" in message({"x": [1]}, ())


@pytest.mark.parametrize("user_values", [counting(1, 3), [counting(1, 3)], 7, None], ids=type)
def test_what_is_neither_mapping_nor_path_is_refused(user_values):
    type_name = type(user_values).__name__
    assert f"inputs were given as a {type_name}; expected arrays by the names" in message(
        InputData(user_values)
    )


# Files that cannot be read


def write_npz(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda path: path, "No such file or directory; expected an .npz file with an array for each input"),
        (lambda path: path.write_text("x, 1") and path, "it is no .npz file; expected an .npz file"),
        (lambda path: write_npz(path, x=b"text"), "its 'x' is no array"),
        (lambda path: write_npz(path, **{"x.npy": b"\x93NUMPY\1\0"}), "expected an .npz file"),
        (lambda path: np.savez(path, x=np.array([None])) or path, "Object arrays cannot be loaded"),
        (lambda path: path.mkdir() or path, "has neither .npy files nor images; expected NAME.npy for each"),
    ],
    ids=["missing", "text", "member", "cut", "objects", "empty folder"],
)
def test_what_is_no_file_of_arrays_is_refused(tmp_path, make: Callable[[Path], Path], expected):
    refusal = message(make(tmp_path / "inputs.npz"))
    assert expected in refusal and f"{tmp_path}/inputs.npz" in refusal


def test_damaged_files_are_refused_wherever_the_damage_is(tmp_path):
    np.savez_compressed(tmp_path / "whole.npz", x=counting(2, 3, 4, 6))
    intact = (tmp_path / "whole.npz").read_bytes()
    path = tmp_path / "damaged.npz"
    generator = np.random.default_rng(0)
    refused = 0
    for _ in range(200):
        damaged = bytearray(intact)
        for position in generator.integers(0, len(intact), 3):
            damaged[position] = generator.integers(0, 256)
        path.write_bytes(damaged[: generator.integers(1, len(intact) + 1)])
        try:
            user_input_source(path, SMALL, None)
        except ConvswapError as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused > 100


def test_a_damaged_npy_file_in_a_folder_is_named(tmp_path):
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\1\0 ")
    assert f"cannot read the inputs '{tmp_path}/x.npy'" in message(tmp_path)


# Images


def save_image(path: Path, *, size=(6, 4), mode="RGB", value=(255, 51, 0)) -> None:
    Image.new(mode, size, value).save(path)


def test_images_become_numbers_by_scale_mean_and_std(tmp_path):
    save_image(tmp_path / "b.png")
    save_image(tmp_path / "a.png", value=(0, 0, 0))
    (tmp_path / "notes.txt").write_text("not an image")
    array = user_input_feeds(tmp_path, SMALL)["x"]
    assert (array.shape, array.dtype) == ((2, 3, 4, 6), np.float32)
    # Sorted by name, channels first, in 0..1.
    np.testing.assert_allclose(array[:, :, 0, 0], [[0, 0, 0], [1, 0.2, 0]], rtol=1e-6)
    user_values = InputData(tmp_path, mean=(0.5, 0.1, 0), std=(0.5, 0.1, 2))
    np.testing.assert_allclose(user_input_feeds(user_values, SMALL)["x"][1, :, 3, 5], [1, 1, 0], rtol=1e-6)
    user_values = InputData(tmp_path, mean=55, std=(2.0,), scale=1)
    np.testing.assert_allclose(
        user_input_feeds(user_values, SMALL)["x"][1, :, 3, 5], [100, -2, -27.5], rtol=1e-6
    )


def test_a_file_for_which_pillow_would_run_a_program_is_refused_whatever_its_name(tmp_path):
    # Pillow runs Ghostscript for EPS files.
    Image.new("RGB", (6, 4)).save(tmp_path / "a.eps")
    (tmp_path / "a.eps").rename(tmp_path / "a.png")
    assert "a.png': cannot identify image file" in message(tmp_path)


def test_images_in_grey_and_with_opacity_become_what_the_input_takes(tmp_path):
    save_image(tmp_path / "a.png", mode="RGBA", value=(255, 255, 255, 9))
    save_image(tmp_path / "b.png", mode="L", value=51)
    assert user_input_feeds(tmp_path, SMALL)["x"][:, :, 0, 0].tolist() == [[1] * 3, [pytest.approx(0.2)] * 3]
    assert user_input_feeds(tmp_path, GREY)["x"][:, 0, 0, 0].tolist() == [1, pytest.approx(0.2)]


def test_an_input_of_whole_numbers_gets_the_pixels_themselves(tmp_path):
    save_image(tmp_path / "a.png")
    bytes_of = declared(tensor_info("x", "n", 3, 4, 6, element_type=TensorProto.UINT8))
    assert user_input_feeds(tmp_path, bytes_of)["x"][0, :, 0, 0].tolist() == [255, 51, 0]
    assert "takes uint8, but pixels become -1 to 254" in message(InputData(tmp_path, mean=1), bytes_of)


def test_images_are_scaled_to_a_fixed_size_and_in_proportion_to_a_fixed_height(tmp_path):
    save_image(tmp_path / "a.png", size=(12, 16))
    assert user_input_feeds(tmp_path, SMALL)["x"].shape == (1, 3, 4, 6)
    assert user_input_feeds(tmp_path, IMAGES)["x"].shape == (1, 3, 16, 12)
    assert user_input_feeds(tmp_path, declared(tensor_info("x", "n", 3, 8, "w")))["x"].shape == (1, 3, 8, 6)
    assert user_input_feeds(tmp_path, declared(tensor_info("x", "n", 3, "h", 3)))["x"].shape == (1, 3, 4, 3)


def test_several_sizes_are_refused_for_an_input_of_open_size(tmp_path):
    save_image(tmp_path / "a.png", size=(12, 16))
    save_image(tmp_path / "b.png", size=(9, 16))
    assert user_input_feeds(tmp_path, SMALL)["x"].shape == (2, 3, 4, 6)
    refusal = message(tmp_path, IMAGES)
    assert "'a.png' is 16x12 and 'b.png' 16x9, and input 'x' [n, 3, h, w] leaves its own open" in refusal
    assert refusal.endswith("give images of one size, or --input-shape")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"mean": (1, 2)}, "mean has 2 numbers for images of 3 channels; give 1 or 3"),
        ({"std": (1, 0, 1)}, "std has a 0"),
        ({"std": float("nan")}, "std was given as nan; expected numbers"),
        ({"mean": "grey"}, "mean was given as 'grey'; expected numbers"),
        ({"scale": (1, 2)}, "scale has 2 numbers; give 1"),
    ],
    ids=str,
)
def test_numbers_for_pixels_that_cannot_be_are_refused(tmp_path, options, expected):
    save_image(tmp_path / "a.png")
    assert expected in message(InputData(tmp_path, **options))


def test_numbers_for_pixels_are_refused_beside_arrays(tmp_path):
    np.savez(tmp_path / "inputs.npz", x=counting(1, 3, 4, 6))
    refusal = message(InputData(tmp_path / "inputs.npz", mean=0.5))
    assert (
        refusal.startswith("mean is of images, but '")
        and "has arrays, " in refusal
        and "which are fed as they are" in refusal
    )
    assert "scale is of images, but arrays were given" in message(InputData({"x": [1]}, scale=2))


def test_images_for_a_model_that_takes_none_are_refused(tmp_path):
    save_image(tmp_path / "a.png")
    assert "one input [n, 1 or 3, height, width], but its inputs are 'x' [n, 3], 'size' [2]" in message(
        tmp_path, TWO
    )
    assert "its inputs are none; give an .npz file" in message(tmp_path, ())
    assert "is an image; give the folder that it is in" in message(tmp_path / "a.png")


def test_images_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    assert f"cannot read the inputs '{tmp_path}/a.png'" in message(tmp_path)
    Image.fromarray(np.full((4, 6), 40000, np.uint16)).save(tmp_path / "a.png")
    assert "has pixels of mode I;16; give images of 8 bits a channel" in message(tmp_path)


# Samples and batches


def test_all_samples_are_one_batch_unless_asked_otherwise():
    source = user_input_source({"x": counting(5, 3), "size": [7, 9]}, TWO, None)
    assert (source.images, source.batch) == (5, 5)
    assert source.inputs[0].shape == (None, 3) and source.inputs[1].shape == (2,)
    assert all(each.is_from_user for each in source.inputs)
    assert first_numbers(source) == [[0, 3, 6, 9, 12]]


def test_a_smaller_batch_goes_through_the_samples_and_fills_up_the_last():
    source = user_input_source({"x": counting(5, 3), "size": [7, 9]}, TWO, 2)
    assert first_numbers(source) == [[0, 3], [6, 9], [12, 0]]
    assert [counted for _, counted in source.batches()] == [2, 2, 1]
    assert all(feeds["size"].tolist() == [7, 9] for feeds, _ in source.batches())


def test_a_larger_batch_repeats_the_samples():
    source = user_input_source({"x": counting(2, 3), "size": [7, 9]}, TWO, 5)
    assert (source.images, source.batch) == (2, 5)
    assert first_numbers(source) == [[0, 3, 0, 3, 0]]
    assert source.first(3)["x"][:, 0].tolist() == [0, 3, 0]


def test_an_input_of_fixed_extent_is_no_sample_though_there_are_as_many():
    source = user_input_source({"x": counting(2, 3), "size": [7, 9]}, TWO, 1)
    assert [feeds["size"].tolist() for feeds, _ in source.batches()] == [[7, 9]] * 2


def test_images_are_the_first_of_those_given():
    source = user_input_source({"x": counting(5, 3), "size": [7, 9]}, TWO, None, images=3)
    assert (source.images, source.batch) == (3, 3) and first_numbers(source) == [[0, 3, 6]]
    refusal = message({"x": counting(5, 3), "size": [7, 9]}, TWO, images=9)
    assert refusal == "9 images were asked for, but the values given are of 5; ask for less"
    assert "images must be at least 1" in message({"x": counting(5, 3), "size": [7, 9]}, TWO, images=0)


def test_a_model_of_a_fixed_batch_gets_its_samples_batch_after_batch():
    inputs = declared(
        tensor_info("x", 2, 3), tensor_info("scale", 2, 1), tensor_info("size", 3, element_type=INT64)
    )
    user_values = {"x": counting(6, 3), "scale": counting(2, 1), "size": [7, 8, 9]}
    source = user_input_source(user_values, inputs, None)
    assert (source.images, source.batch) == (6, 2)
    assert first_numbers(source) == [[0, 3], [6, 9], [12, 15]]
    # Input scale has the same values in every batch.
    assert first_numbers(source, "scale") == [[0, 1]] * 3
    assert first_numbers(user_input_source(user_values, inputs, None, images=3)) == [[0, 3], [6, 0]]
    assert source.first(5)["x"].shape == (2, 3)
    assert (
        "[2, 3] was given an array of shape [5, 3]; give one of the input's shape, or of several "
        in message({**user_values, "x": counting(5, 3)}, inputs)
    )
    assert (
        "input 'scale' was given 4 samples, but input 'x' 6; give as many, or 2 for all batches"
        in message({**user_values, "scale": counting(4, 1)}, inputs)
    )
    assert "'size' [3] was given an array of shape [6]" in message({**user_values, "size": [1] * 6}, inputs)
    assert "the model takes batches of 2, by its input 'x' [2, 3], but batch 3 was given" in message(
        user_values, inputs, batch=3
    )


def test_a_state_that_is_tied_to_the_batch_keeps_it():
    user_values = {"x": counting(4, 5), "state": counting(2, 4, 8), "rate": 16000}
    source = user_input_source(user_values, STATEFUL, None)
    assert (source.images, source.batch) == (4, 4) == (user_input_source(user_values, STATEFUL, 4).images, 4)
    for feeds in (source.first(1), source.first(9), *(feeds for feeds, _ in source.batches())):
        assert [values.shape for values in feeds.values()] == [(4, 5), (2, 4, 8), ()]
    refusal = message(user_values, STATEFUL, batch=2)
    assert (
        "batches of 2 were asked for, but the values given are of 4, and input 'state' [2, ?, 8]" in refusal
    )
    assert "runs of 2 were asked for" in message(user_values, STATEFUL, images=2)


def test_an_axis_of_another_name_than_the_batch_is_not_tied_to_it():
    inputs = declared(tensor_info("x", "n", 3, "h"), tensor_info("mask", 1, "h"))
    source = user_input_source({"x": counting(4, 3, 4), "mask": counting(1, 4)}, inputs, 2)
    assert first_numbers(source) == [[0, 12], [24, 36]]


def test_another_leading_extent_is_fed_as_it_is():
    inputs = declared(tensor_info("x", "n", 3), tensor_info("boxes", "boxes", 4))
    source = user_input_source({"x": counting(2, 3), "boxes": counting(7, 4)}, inputs, None)
    assert source.first(1)["boxes"].shape == (7, 4) == source.inputs[1].shape
    assert "input 'boxes' [boxes, 4] cannot be taken apart" in message(
        {"x": counting(2, 3), "boxes": counting(7, 4)}, inputs, batch=1
    )


def test_an_input_without_a_rank_takes_any():
    unranked = tensor_info("x")
    unranked.type.tensor_type.ClearField("shape")
    inputs = declared(unranked)
    assert first_numbers(user_input_source({"x": counting(4, 3)}, inputs, 2)) == [[0, 3], [6, 9]]
    assert user_input_source({"x": 3.0}, inputs, None).first(1)["x"].shape == ()


# Notes for the reader


def test_whole_numbers_that_nobody_gave_are_noted_and_named_where_a_run_fails():
    (note,) = shape_notes(TWO, TWO, 1)
    assert note == "integer input 'size' [2] gets zeros and ones; --inputs gives it real values"
    inputs = declared(*(tensor_info(name, 1, element_type=INT64) for name in ("start", "end")))
    with pytest.raises(ConvswapError) as caught, shape_notes_on_error(inputs, inputs, 1):
        raise ConvswapError("it does not run")
    assert str(caught.value) == (
        "it does not run; integer inputs 'start' [1], 'end' [1] get zeros and ones; --inputs gives "
        "them real values"
    )


def test_given_shapes_are_noted_where_the_model_leaves_its_shape_open():
    source = user_input_source({"x": counting(4, 5), "state": counting(2, 4, 8), "rate": 1}, STATEFUL, None)
    assert shape_notes(STATEFUL, source.inputs, 4) == [
        "the model leaves the shape of input 'x' [?, ?] open: what was given is 4x5",
        "the model leaves the shape of input 'state' [2, ?, 8] open: what was given is 2x4x8",
    ]


@pytest.mark.parametrize("array", ["x.npy", "X.NPY", "x.npz"])
def test_a_folder_of_arrays_and_images_is_refused(tmp_path, array):
    save_image(tmp_path / "a.png")
    np.save(tmp_path / "x", counting(1, 3, 4, 6))
    (tmp_path / "x.npy").rename(tmp_path / array)
    refusal = message(tmp_path)
    assert f"has arrays, such as {array}, and images, such as a.png; give a folder with one kind" in refusal


def test_images_are_turned_upright_by_their_exif_orientation(tmp_path):
    stored = Image.new("RGB", (4, 6), "black")
    stored.putpixel((0, 5), (255, 255, 255))  # at the bottom left
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6  # a quarter turn clockwise makes it upright
    stored.save(tmp_path / "a.png", exif=exif)
    array = user_input_feeds(tmp_path, IMAGES)["x"]
    assert array.shape == (1, 3, 4, 6)
    assert array[0, :, 0, 0].tolist() == [1, 1, 1] and array.sum() == 3


def test_an_alpha_channel_is_left_out_and_the_colours_stay_as_they_are_stored(tmp_path):
    save_image(tmp_path / "a.png", mode="RGBA", value=(255, 51, 0, 0))
    assert user_input_feeds(tmp_path, SMALL)["x"][0, :, 0, 0].tolist() == [1, pytest.approx(0.2), 0]
