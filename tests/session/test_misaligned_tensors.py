"""Misaligned tensors: weights at odd offsets of their file, and memory that a user binds."""

from __future__ import annotations

import ctypes
import os
import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from conv_cases import ConvCase, assert_within_rounding
from convswap import _native
from onnx import TensorProto, helper, numpy_helper
from op_sessions import CASE, ROUNDING, B, W, X, case_model, check, conv_model, make_session, run
from swap_models import text_model

ODD_OFFSETS = (1, 2, 3)


def with_constants_at_odd_offsets(model: bytes, folder: Path, shift: int = 1) -> str:
    """Write `model` with all constants in one data file, each `shift` bytes after a multiple of 8."""
    proto = onnx.load_from_string(model)
    content = b""
    for tensor in proto.graph.initializer:
        content += b"\0" * (-len(content) % 8 + shift)
        for key, value in (
            ("location", "data.bin"),
            ("offset", len(content)),
            ("length", len(tensor.raw_data)),
        ):
            tensor.external_data.add(key=key, value=str(value))
        content += tensor.raw_data
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
    (folder / "data.bin").write_bytes(content)
    onnx.save(proto, folder / "model.onnx")
    return str(folder / "model.onnx")


def shifted(array: np.ndarray, shift: int) -> np.ndarray:
    """Return the bytes of `array` in memory that begins `shift` bytes after a multiple of 8."""
    room = np.zeros(array.nbytes + 16, np.uint8)
    start = -room.ctypes.data % 8 + shift
    room[start : start + array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
    return room[start : start + array.nbytes]


def bind(binding: onnxruntime.IOBinding, name: str, memory: np.ndarray, like: np.ndarray) -> None:
    binding.bind_input(name, "cpu", 0, like.dtype, list(like.shape), memory.ctypes.data)


@pytest.mark.parametrize("shift", ODD_OFFSETS)
@pytest.mark.parametrize("domain", ["convswap", ""], ids=["swapped", "override"])
def test_weights_and_bias_at_odd_offsets_of_their_file_are_read_right(domain, shift, device, tmp_path):
    path = with_constants_at_odd_offsets(case_model(CASE, domain=domain), tmp_path, shift)
    session = make_session(path, device, override=not domain)
    for _ in range(2):
        check(run(session, X), CASE, device)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_weights_of_every_size_of_element_may_be_at_odd_offsets(dtype, tmp_path):
    x, w, b = (array.astype(dtype) for array in (X, W, B))
    element_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model = conv_model(w=w, b=b, element_type=element_type, **CASE.attributes)
    expected = run(make_session(model), x)
    # A shift of 4 misaligns only float64.
    for shift in (1, 4):
        session = make_session(with_constants_at_odd_offsets(model, tmp_path, shift))
        np.testing.assert_array_equal(run(session, x), expected)


def test_a_weight_in_a_branch_of_the_graph_may_be_at_an_odd_offset_of_the_file(tmp_path):
    branches = ", ".join(
        f"{key} = graph () => (float[] {key}) {{ [{key}] {key} = convswap.Conv(x, w) }}"
        for key in ("else_branch", "then_branch")
    )
    proto = text_model(
        f"y = If <{branches}> (flag)",
        numpy_helper.from_array(W, "w"),
        inputs=f"float{list(X.shape)} x, bool flag",
        outputs="float[] y",
        domains="convswap",
    )
    model = proto.SerializeToString()
    session = make_session(with_constants_at_odd_offsets(model, tmp_path))
    y = run(session, X, flag=np.array(True))
    assert_within_rounding(y, (X, W, None), *ROUNDING["cpu"])


M_MMAP_THRESHOLD = -3  # of mallopt(3)


@pytest.fixture
def fresh_memory():
    """Allocate large blocks by mmap and return them to the system, despite the Makefile's malloc settings."""
    mallopt = ctypes.CDLL(None).mallopt
    default = 128 << 10
    mallopt(M_MMAP_THRESHOLD, default)
    yield
    mallopt(M_MMAP_THRESHOLD, int(os.environ.get("MALLOC_MMAP_THRESHOLD_", default)))


def faults_of(steps):
    # Memory that earlier tests freed would be reused without page faults.
    ctypes.CDLL(None).malloc_trim(0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    steps()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.usefixtures("fresh_memory")
def test_weights_at_an_odd_offset_are_copied_when_the_session_is_made_and_not_at_each_run(tmp_path):
    # Large enough that a copy would be new memory, whose pages fault.
    w = np.random.default_rng(5).normal(size=(4096, 4096, 1, 1)).astype(np.float32)
    x = np.ones((1, 4096, 1, 1), np.float32)
    session = make_session(with_constants_at_odd_offsets(conv_model(x=x.shape, w=w), tmp_path))
    run(session, x)
    # Pages of at most 2 MiB: a copy in each of 5 runs takes 5 * 32 faults.
    assert faults_of(lambda: [w.copy() for _ in range(5)]) >= 5 * 32
    assert faults_of(lambda: [run(session, x) for _ in range(5)]) < 100


def test_concurrent_runs_share_weights_at_an_odd_offset(tmp_path):
    session = make_session(with_constants_at_odd_offsets(case_model(CASE), tmp_path))
    with ThreadPoolExecutor(8) as threads:
        for y in threads.map(lambda _: run(session, X), range(64)):
            check(y, CASE, "cpu")


@pytest.mark.parametrize("shift", ODD_OFFSETS)
def test_every_input_and_the_output_may_begin_between_two_elements_on_the_cpu(shift):
    model = conv_model(
        op="FusedConv", w=list(W.shape), b=[4], z=list(CASE.reference.shape), **CASE.attributes
    )
    session = make_session(model)
    z = np.random.default_rng(3).normal(size=CASE.reference.shape).astype(np.float32)
    expected = session.run(None, {"x": X, "w": W, "b": B, "z": z})[0]
    arrays = {"x": X, "w": W, "b": B, "z": z}
    memory = {name: shifted(array, shift) for name, array in arrays.items()}
    guard = 16
    y = shifted(np.full(expected.size + 2 * guard, np.nan, np.float32), shift)
    binding = session.io_binding()
    for name, array in arrays.items():
        bind(binding, name, memory[name], array)
    binding.bind_output("y", "cpu", 0, np.float32, list(expected.shape), y.ctypes.data + 4 * guard)
    session.run_with_iobinding(binding)
    written = np.frombuffer(y.tobytes(), np.float32)
    np.testing.assert_array_equal(written[guard:-guard].reshape(expected.shape), expected)
    assert np.all(np.isnan(written[:guard])) and np.all(np.isnan(written[-guard:]))
    for name, array in arrays.items():
        assert memory[name].tobytes() == array.tobytes()


@pytest.mark.gpu
@pytest.mark.parametrize("elements", [0, 1, 2])
@pytest.mark.parametrize("algorithm", ["depthwise", "sliding_rows"])
def test_depthwise_kernels_take_data_not_aligned_to_what_they_move_at_once(algorithm, elements, cuda):
    # Rows that these kernels would load and store four elements at a time.
    case = ConvCase((2, 8, 20, 24), (8, 1, 3, 3), True, {"group": 8, "pads": [1, 1, 1, 1]})
    x, w, b = case.arrays()
    session = make_session(conv_model(x=case.x_shape, w=w, b=b, algorithm=algorithm, **case.attributes), cuda)
    room = np.full(x.size + 4, np.nan, np.float32)
    of_y = _native.DeviceArray.from_numpy(room)
    room[elements : elements + x.size] = x.ravel()
    of_x = _native.DeviceArray.from_numpy(room)
    binding = session.io_binding()
    shape = list(x.shape)  # the shape of y too
    binding.bind_input("x", "cuda", 0, np.float32, shape, of_x.pointer + 4 * elements)
    binding.bind_output("y", "cuda", 0, np.float32, shape, of_y.pointer + 4 * elements)
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    written = of_y.to_numpy()
    case.check(written[elements : elements + x.size].reshape(shape), 2.0**-24)
    assert np.all(np.isnan(written[:elements])) and np.all(np.isnan(written[elements + x.size :]))


@pytest.mark.gpu
def test_memory_of_a_card_that_begins_between_two_elements_is_refused_and_the_session_goes_on(cuda):
    session = make_session(case_model(CASE), cuda)
    expected = run(session, X)
    memory = _native.DeviceArray((CASE.reference.size + 2,))
    for offset in (2, 1, 3):
        binding = session.io_binding()
        binding.bind_cpu_input("x", X)
        shape = list(CASE.reference.shape)
        binding.bind_output("y", "cuda", 0, np.float32, shape, memory.pointer + offset)
        with pytest.raises(Exception, match="is not a multiple of its elements' 4 bytes: bind"):
            session.run_with_iobinding(binding)
    np.testing.assert_array_equal(run(session, X), expected)
