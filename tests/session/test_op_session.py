"""The op in sessions: outputs and shape inference of `convswap.Conv`, its errors, and runs after an error.

Tests with the fixture `device` run on the CPU provider and, on a machine with a card, on the CUDA provider.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import onnxruntime
import pytest
from conv_cases import CASES, ConvCase, assert_within_rounding, case_id
from convswap import _native
from each_case import each
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from op_sessions import (
    CASE,
    CREATION_ERRORS,
    ROUNDING,
    RUN_ERRORS,
    WRONG_TYPES,
    B,
    W,
    X,
    case_model,
    check,
    conv_model,
    make_session,
    run,
    undeclared_model,
)
from repeats import sample_of
from swap_models import text_model


def undeclared_model_before(follower: str, **attributes) -> bytes:
    """Return a Conv of undeclared inputs, followed by an op that needs to know the rank."""
    model = onnx.load_from_string(undeclared_model())
    model.graph.node[0].output[0] = "conv"
    model.graph.node.append(helper.make_node(follower, ["conv"], ["y"], **attributes))
    return model.SerializeToString()


# A run with sanitizers has all cases in this test, so the others need a sample.
@each("case", CASES)
def test_op_is_the_definition_for_every_attribute_and_rank(case, device):
    check(run(make_session(case_model(case), device), case.arrays()[0]), case, device)


@each("case", sample_of(CASES))
def test_op_agrees_with_the_conv_of_onnx_runtime(case):
    if "auto_pad" in case.attributes and max(case.attributes.get("dilations", [1])) > 1:
        pytest.skip("ONNX Runtime's own Conv refuses dilations with auto_pad")
    x = case.arrays()[0]
    expected = run(make_session(case_model(case, domain=""), ours=False), x)
    y = run(make_session(case_model(case)), x)
    # Two float32 sums of the same terms, in different orders.
    assert np.all(np.abs(y - expected) <= 2.02 * (case.terms + 2) * 2.0**-24 * case.magnitude)


def test_weights_and_bias_need_not_be_constant(device):
    session = make_session(conv_model(w=[None] * 4, b=[None], x=["N", None, None, None]), device)
    for case in (
        ConvCase((2, 3, 9, 8), (4, 3, 3, 3), True),
        ConvCase((2, 3, 9, 8), (4, 3, 5, 2), True),  # data of the same shape as before
        ConvCase((1, 2, 9, 8), (6, 2, 5, 2), True),
        ConvCase((2, 3, 9, 8), (4, 3, 3, 3), True),
    ):
        x, w, b = case.arrays()
        check(run(session, x, w=w, b=b), case, device)


def test_one_session_runs_every_shape_in_turn(device):
    w = W[:, :, :2]
    session = make_session(conv_model(x=["N", 3, "H", "W"], w=w, pads=[1, 1, 1, 1]), device)
    random = np.random.default_rng(8)
    shapes = [
        (2, 3, 9, 8),
        (1, 3, 20, 31),
        (2, 3, 9, 8),
        (5, 3, 3, 1),
        (1, 3, 64, 65),
        (0, 3, 9, 8),
        (1, 3, 20, 31),
    ]
    for shape in shapes * 2:
        x = random.normal(size=shape).astype(np.float32)
        assert_within_rounding(run(session, x), (x, w, None), *ROUNDING[device], pads=[1, 1, 1, 1])


def test_empty_optional_bias_is_no_bias(device):
    if tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 25):
        pytest.skip("ONNX Runtime below 1.24.4 ends the process on an empty optional input of a custom op")
    model = onnx.load_from_string(conv_model())
    model.graph.node[0].input.append("")
    y = run(make_session(model.SerializeToString(), device), X)
    assert_within_rounding(y, (X, W, None), *ROUNDING[device])


def test_op_computes_in_both_branches_of_an_if(device):
    nodes = """
      y = If <
        else_branch = else () => (float[] e) { [conv_e] e = convswap.Conv <strides = [2, 2]> (x, w) },
        then_branch = then () => (float[] t) { [conv_t] t = convswap.Conv(x, w) }
      > (c)"""
    inputs = f"bool c, float{list(CASE.x_shape)} x"
    w = numpy_helper.from_array(W, "w")
    proto = text_model(nodes, w, inputs=inputs, outputs="float[] y", domains="convswap")
    session = make_session(proto.SerializeToString(), device)
    for condition, attributes in ((True, {}), (False, {"strides": [2, 2]})):
        y = session.run(None, {"c": np.array(condition), "x": X})[0]
        assert_within_rounding(y, (X, W, None), *ROUNDING[device], **attributes)


# Shapes that a session infers before its first run.


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
def test_same_padding_with_a_stride_beyond_the_filter_crops_nothing(mode, device):
    # ONNX Runtime's own Conv crops the input if the padding would be negative; the operator's reference does
    # not.
    x = np.arange(1, 45, dtype=np.float32).reshape(1, 1, 1, 44)
    attributes = {"w": np.ones((1, 1, 1, 1), np.float32), "strides": [1, 11], "auto_pad": mode}
    y = run(make_session(conv_model(x=[*x.shape], **attributes), device), x)
    model = onnx.load_from_string(conv_model(x=[*x.shape], domain="", **attributes))
    assert np.array_equal(y, ReferenceEvaluator(model).run(None, {"x": x})[0])
    assert y.ravel().tolist() == [1, 12, 23, 34]


@each("case", sample_of(CASES))
def test_inferred_shape_is_the_shape_that_comes_out(case):
    session = make_session(case_model(case, follow="Relu"))
    assert session.get_outputs()[0].type == "tensor(float)"
    assert tuple(session.get_outputs()[0].shape) == run(session, case.arrays()[0]).shape


def test_inferred_shape_has_the_name_of_the_batch_and_new_names_for_other_unknowns():
    session = make_session(conv_model(x=["N", 3, "S", "S"], w=W[:, :, :2]))
    batch, filters, *spatial = session.get_outputs()[0].shape
    # A square image gives an output that is not square, so its sides need names other than the image's.
    assert (batch, filters) == ("N", 4)
    assert all(isinstance(name, str) and name != "S" for name in spatial)
    assert len(set(spatial)) == 2


def test_inferred_shape_has_what_is_known_of_it():
    def inferred(**options):
        return make_session(conv_model(**options)).get_outputs()[0].shape

    shape = inferred(x=[None, None, 9, "W"])
    assert (shape[1], shape[2]) == (4, 7) and isinstance(shape[0], str) and isinstance(shape[3], str)
    shape = inferred(w=[None] * 4, kernel_shape=[3, 2])
    assert (shape[0], shape[2], shape[3]) == (2, 7, 7) and isinstance(shape[1], str)
    shape = inferred(w=[6, None, None, None])
    assert shape[:2] == [2, 6] and all(isinstance(size, str) for size in shape[2:])
    assert inferred(x=["N", 3, 9, 8], auto_pad="SAME_UPPER", strides=[2, 3]) == ["N", 4, 5, 3]


EXPECTED_SHAPE_WARNING = "Expected shape from model"


@pytest.mark.parametrize("x", [CASE.x_shape, ["N", 3, "H", "W"], ["N", "C", "S", "S"], [None] * 4])
def test_no_run_contradicts_the_inferred_shape(x, capfd, device):
    session = make_session(conv_model(x=x, follow="Relu", strides=[2, 1]), device)
    for shape in [CASE.x_shape] if x == CASE.x_shape else [CASE.x_shape, (5, 3, 4, 30), (1, 3, 12, 12)]:
        run(session, np.zeros(shape, np.float32))
    assert EXPECTED_SHAPE_WARNING not in capfd.readouterr().err


def test_runtime_warns_where_a_run_contradicts_the_model(capfd):
    # Shows that the test above can fail.
    run(make_session(conv_model(x=["N", 3, "H", "W"], output=["N", 4, 5, 5])), X)
    assert EXPECTED_SHAPE_WARNING in capfd.readouterr().err


# Algorithms and precisions.


def test_every_algorithm_of_the_catalog_can_be_asked_for(device):
    problem = _native.Problem(CASE.x_shape, CASE.w_shape, True, **CASE.attributes)
    names = [entry.name for entry in _native.catalog() if entry.device == device]
    supported = [name for name in names if not _native.why_not(problem, name, device)]
    assert len(supported) >= 1
    for name in ["auto", *supported]:
        check(run(make_session(case_model(CASE, algorithm=name), device), X), CASE, device)


def test_reference_and_direct_are_really_the_ones_that_run():
    reference = run(make_session(case_model(CASE, algorithm="reference")), X)
    direct = run(make_session(case_model(CASE, algorithm="direct")), X)
    assert np.array_equal(reference, _native.conv(X, W, B, algorithm="reference", **CASE.attributes))
    assert np.array_equal(direct, _native.conv(X, W, B, algorithm="direct", **CASE.attributes))
    assert not np.array_equal(reference, direct)


@pytest.mark.parametrize(
    ("name", "nearest"), [("direkt", "direct"), ("reference ", "reference"), ("Auto", "auto")]
)
def test_unknown_algorithm_is_refused_with_the_nearest(name, nearest):
    with pytest.raises(
        Exception, match=f"node 'conv1': unknown algorithm .*'{name}'; did you mean '{nearest}'"
    ):
        make_session(conv_model(algorithm=name))


def test_algorithm_of_a_card_is_refused_on_the_cpu():
    with pytest.raises(Exception, match="node 'conv1': algorithm 'tiled' is one of the device cuda"):
        make_session(conv_model(algorithm="tiled"))


@pytest.mark.gpu
def test_algorithm_of_the_cpu_is_refused_on_the_card(cuda):
    with pytest.raises(Exception, match="node 'conv1': algorithm 'direct' is one of the device cpu"):
        make_session(conv_model(algorithm="direct"), cuda)


@pytest.mark.gpu
@pytest.mark.algorithm("few_channels")
def test_algorithm_that_cannot_compute_the_problem_says_why_at_the_first_run(cuda):
    wide = np.ones((4, X.shape[1], 3, 12), np.float32)
    session = make_session(conv_model(algorithm="few_channels", w=wide, pads=[0, 4, 0, 4]), cuda)
    with pytest.raises(Exception, match=r"node 'conv1': algorithm 'few_channels' cannot compute .* 12 taps"):
        run(session, X)


def test_both_precisions_are_accepted_and_ieee_is_float32(device):
    check(run(make_session(case_model(CASE, precision="tf32"), device), X), CASE, device)
    y = run(make_session(case_model(CASE, precision="ieee"), device), X)
    CASE.check(y, ROUNDING[device][0])


@pytest.mark.parametrize("name", ["iee", "TF32", "float16", "fast"])
def test_unknown_precision_is_refused(name, device):
    with pytest.raises(Exception, match=f"node 'conv1': unknown precision '{name}'"):
        make_session(conv_model(precision=name), device)


# Errors at session creation, and in runs.


@each("options, message", CREATION_ERRORS)
def test_misfit_is_refused_when_the_session_is_made(options, message, device):
    with pytest.raises(Exception, match=re.escape(f"convswap Conv node 'conv1': {message}")) as raised:
        make_session(conv_model(**options), device)
    assert len(str(raised.value).splitlines()) == 1
    assert "open" not in str(raised.value)


# Open parts of a model: symbolic dimensions, or an unknown rank.
OPEN_ERRORS = [
    ({"x": ["n", 5, "h", "w"]}, "input of shape [1, 5, 3, 3]: expected 3 channels"),
    (
        {"x": ["n", 3, 2, "w"]},
        "spatial axis 0: the filter reaches over 3 positions but the padded input has 2",
    ),
    (
        {"x": ["n", 3, "h"]},
        "weights of shape [4, 3, 3, 3]: expected as many dimensions as the input of shape",
    ),
    ({"x": None, "b": np.ones(3, np.float32)}, "bias of shape [3]: expected [4]"),
    (
        {"w": ["k", 3, 3, 3], "b": [4], "x": ["n", 2, 9, 8]},
        "input of shape [1, 2, 9, 8]: expected 3 channels",
    ),
    ({"w": ["k", "c", 3, 3], "b": [4], "group": 3}, "group 3: expected a divisor of the weights' 4 output"),
    ({"w": ["k", "c", "r", "s"], "kernel_shape": [3]}, "kernel_shape [3]: expected 2 values"),
]


@each("options, message", OPEN_ERRORS)
def test_misfit_is_refused_when_the_session_is_made_whatever_else_is_open(options, message, device):
    with pytest.raises(Exception, match=re.escape(f"convswap Conv node 'conv1': {message}")) as raised:
        make_session(conv_model(**options), device)
    assert str(raised.value).endswith("; unknown dimensions were replaced by values that fit")
    assert len(str(raised.value).splitlines()) == 1


OPEN_SHAPES = [
    {"x": ["n", "c", "h", "w"]},
    {"x": None, "w": ["k", "c", "r", "s"], "b": ["k"]},
    {"x": ["n", 3, "h", "w"], "w": ["k", 3, "r", "s"], "b": [4]},
    {"x": ["n", "c", 9, 8], "w": ["k", "c", 3, 3], "b": ["k"]},
    {"x": None, "w": [4, "c", 3, "s"], "b": B},
]


@pytest.mark.parametrize("options", OPEN_SHAPES, ids=range(len(OPEN_SHAPES)))
def test_what_is_open_is_no_reason_to_refuse(options, device):
    shapes = {"w": W, "b": B} | options
    session = make_session(conv_model(**shapes, **CASE.attributes), device)
    feeds = {"x": X, "w": W, "b": B}
    y = session.run(None, {each.name: feeds[each.name] for each in session.get_inputs()})[0]
    assert_within_rounding(y, (X, W, B), *ROUNDING[device], **CASE.attributes)


@each("name, value, expected", WRONG_TYPES)
def test_attribute_of_another_type_is_refused_and_not_ignored(name, value, expected):
    with pytest.raises(
        Exception, match=f"node 'conv1': attribute {name} has another type.*: expected {expected}"
    ):
        make_session(conv_model(**{name: value}))


@each("x, w, b, message", RUN_ERRORS)
def test_misfit_is_refused_at_the_run_and_the_session_goes_on(x, w, b, message, device):
    session = make_session(undeclared_model(), device)
    misfit = {"x": np.ones(x, np.float32), "w": np.ones(w, np.float32), "b": np.ones(b, np.float32)}
    for _ in range(3):
        with pytest.raises(Exception, match=re.escape(f"convswap Conv node 'conv1': {message}")):
            session.run(None, misfit)
        y = session.run(None, {"x": X, "w": W, "b": B})[0]
        assert_within_rounding(y, (X, W, B), *ROUNDING[device])


@pytest.mark.parametrize(
    ("follower", "attributes"), [("MaxPool", {"kernel_shape": [2, 2]}), ("Flatten", {}), ("Transpose", {})]
)
def test_data_of_unknown_rank_are_no_scalars(follower, attributes, device):
    session = make_session(undeclared_model_before(follower, **attributes), device)
    plain = make_session(undeclared_model(), device).run(None, {"x": X, "w": W, "b": B})[0]
    y = session.run(None, {"x": X, "w": W, "b": B})[0]
    expected = {
        "MaxPool": lambda: np.lib.stride_tricks.sliding_window_view(plain, (2, 2), (2, 3)).max((4, 5)),
        "Flatten": lambda: plain.reshape(len(plain), -1),
        "Transpose": lambda: plain.T,
    }
    np.testing.assert_array_equal(y, expected[follower]())


def test_node_without_a_name_is_refused_in_the_same_words():
    with pytest.raises(Exception, match=r"convswap Conv node '.*': strides \[0, 0\]: expected values from 1"):
        make_session(conv_model(name="", strides=[0, 0]))


# Several threads, sessions and kinds of memory.


@pytest.mark.many_threads
def test_concurrent_runs_give_the_bits_of_a_run_alone(device):
    session = make_session(conv_model(x=["N", 3, "H", "W"], b=B, pads=[1, 1, 1, 1]), device)
    random = np.random.default_rng(9)
    inputs = [
        random.normal(size=(1 + i % 3, 3, 10 + i % 5, 30 - i % 7)).astype(np.float32) for i in range(60)
    ]
    fresh = make_session(conv_model(x=["N", 3, "H", "W"], b=B, pads=[1, 1, 1, 1]), device)
    single_runs = [run(fresh, x) for x in inputs]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda x: run(session, x), inputs))
    assert all(np.array_equal(a, b) for a, b in zip(single_runs, together, strict=True))


def test_number_of_threads_of_the_session_does_not_change_a_bit():
    x = np.random.default_rng(10).normal(size=(3, 3, 40, 41)).astype(np.float32)
    results = [
        run(make_session(conv_model(x=[3, 3, 40, 41]), intra_op_num_threads=threads), x)
        for threads in (1, 2, 7)
    ]
    assert all(np.array_equal(result, results[0]) for result in results)


def test_one_library_serves_many_sessions(device):
    sessions = [make_session(case_model(CASE), device, override=i % 2 == 1) for i in range(12)]
    results = [run(session, X) for session in sessions]
    del sessions[::2]
    results += [run(session, X) for session in sessions]
    for y in results:
        check(y, CASE, device)


def test_output_is_written_completely_and_nothing_outside_it():
    guard = 64
    session = make_session(case_model(CASE))
    reference = CASE.reference
    memory = np.full(reference.size + 2 * guard, np.nan, np.float32)
    y = memory[guard:-guard]
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y", "cpu", 0, np.float32, list(reference.shape), y.ctypes.data)
    session.run_with_iobinding(binding)
    check(y.reshape(reference.shape), CASE, "cpu")
    assert np.all(np.isnan(memory[:guard])) and np.all(np.isnan(memory[-guard:]))


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", ["few_channels", "naive"])
@pytest.mark.parametrize(
    "case",
    [CASE, ConvCase((3, 1, 20, 24), (5, 1, 5, 5)), ConvCase((3, 2, 9, 14), (5, 2, 3, 3), True)],
    ids=case_id,
)
def test_memory_that_is_aligned_to_4_bytes_alone_is_read_and_written_right(case, algorithm, cuda):
    session = make_session(case_model(case, algorithm=algorithm), cuda)
    x, reference = case.arrays()[0], case.reference
    for x_shift in range(4):
        for y_shift in range(4):
            source = np.full(x.size + 4, np.nan, np.float32)
            source[x_shift : x_shift + x.size] = x.ravel()
            x_memory = _native.DeviceArray.from_numpy(source)
            y_memory = _native.DeviceArray((reference.size + 8,))
            y_memory.poison()
            binding = session.io_binding()
            binding.bind_input("x", "cuda", 0, np.float32, list(x.shape), x_memory.pointer + 4 * x_shift)
            binding.bind_output(
                "y", "cuda", 0, np.float32, list(reference.shape), y_memory.pointer + 4 * y_shift
            )
            session.run_with_iobinding(binding)
            binding.synchronize_outputs()
            written = y_memory.to_numpy()
            check(written[y_shift : y_shift + reference.size].reshape(reference.shape), case, cuda)
            assert np.all(np.isnan(written[:y_shift])) and np.all(
                np.isnan(written[y_shift + reference.size :])
            )


@pytest.mark.gpu
def test_cuda_graph_replays_the_op_on_new_data(cuda):
    session = make_session(case_model(CASE), cuda, provider_options={"enable_cuda_graph": "1"})
    x = onnxruntime.OrtValue.ortvalue_from_numpy(X, "cuda", 0)
    y = onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(CASE.reference.shape), np.float32, "cuda", 0)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", x)
    binding.bind_ortvalue_output("y", y)
    for _ in range(4):
        session.run_with_iobinding(binding)
    once = y.numpy()
    check(once, CASE, cuda)
    x.update_inplace(np.ascontiguousarray(X[::-1]))
    session.run_with_iobinding(binding)
    assert np.array_equal(y.numpy(), once[::-1])


# Unmodified models.


def test_override_runs_an_unmodified_conv_on_our_op(device):
    """Only our op has the attribute `algorithm`; ONNX's own Conv refuses it."""
    plain = conv_model(domain="", algorithm="reference" if device == "cpu" else "naive")
    with pytest.raises(Exception, match="Unrecognized attribute"):
        make_session(plain, device, override=False)
    with pytest.raises(Exception, match="convswap Conv node 'conv1': unknown algorithm"):
        make_session(conv_model(domain="", algorithm="nearest"), device, override=True)
    y = run(make_session(plain, device, override=True), X)
    assert_within_rounding(y, (X, W, None), *ROUNDING["cpu"])


LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")


@pytest.mark.parametrize("follow", ["", "Relu"])
@pytest.mark.parametrize("level", LEVELS)
def test_override_holds_at_every_optimisation_level(level, follow, device):
    """Our op's error for a misfit shows that our op runs."""
    model = conv_model(domain="", x=["N", "C", "H", "W"], follow=follow)
    chosen = getattr(onnxruntime.GraphOptimizationLevel, level)
    session = make_session(model, device, override=True, graph_optimization_level=chosen)
    with pytest.raises(Exception, match="convswap Conv node 'conv1': input of shape"):
        run(session, X[:, :2])
    y = run(session, X)
    if follow:
        assert y.min() == 0
    else:
        assert_within_rounding(y, (X, W, None), *ROUNDING[device])


def test_without_override_an_unmodified_conv_stays_with_the_runtime(device):
    session = make_session(conv_model(domain="", x=["N", "C", "H", "W"]), device)
    with pytest.raises(Exception, match="Name:") as raised:
        run(session, X[:, :2])
    assert "convswap" not in str(raised.value)
