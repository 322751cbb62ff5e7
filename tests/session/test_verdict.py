"""A comparison's verdict: outputs that agree are accepted, and a wrong Conv is always found."""

from __future__ import annotations

import importlib

import numpy as np
import onnx
import pytest
from comparisons import checked, small_model
from convswap.comparison import outputs as outputs_module
from convswap.comparison.outputs import agreement
from convswap.comparison.report import compare_html, comparison_verdict, print_comparison
from convswap.errors import ConvswapError
from convswap.graph.swap import FLOAT16_ON_CPU
from convswap.reference.metrics import NO_CLASS
from onnx import TensorProto, helper
from printed import printed
from swap_models import tensor_info
from verdict_models import (
    FLOAT16_FEEDS,
    after_a_conv,
    class_map,
    constant,
    float16_overflow,
    make_our_convs_wrong,
    quantised_chain,
)

compare = importlib.import_module("convswap.comparison.compare").compare
C = (2, 4, 6, 6)


def comparison_of(model: onnx.ModelProto, **options):
    return compare(model, device="cpu", time_layers=False, **options)


def printed_text(comparison) -> str:
    """Return the terminal's text, with its lines joined."""
    return " ".join(printed(print_comparison, comparison).split())


RATIO, TRAINING = constant("ratio", np.float32(0.5)), constant("training", np.array(True))


def dropout() -> onnx.ModelProto:
    return after_a_conv("y = Dropout(c, ratio, training)", RATIO, TRAINING)


def noise() -> onnx.ModelProto:
    return after_a_conv("n = RandomNormalLike <scale = 0.3> (c)  y = Add(c, n)")


def draws() -> onnx.ModelProto:
    """Return a model whose outputs are randomly drawn classes, 200 for each of two samples."""
    nodes = "f = Flatten(c)  y = Multinomial <sample_size = 200> (f)"
    return after_a_conv(nodes, outputs="int32[2, 200] y")


@pytest.mark.parametrize("model", [dropout, noise, draws])
def test_random_outputs_are_compared_with_the_same_seeds_on_both_sides(model):
    result = comparison_of(model())
    assert result.within_tolerance
    (note,) = (note for note in result.notes if "is random" in note)
    assert "output 'y' is random: the default side differs from its own second run by" in note
    assert "with the same seeds, the sides differ by" in note
    checked(result)


@pytest.mark.parametrize("model", [dropout, noise])
def test_wrong_conv_before_random_numbers_is_found(model, monkeypatch):
    make_our_convs_wrong(monkeypatch, 1.02)
    result = comparison_of(model())
    assert not result.within_tolerance
    assert any("output 'y' is wrong" in note for note in result.notes)


def test_random_outputs_without_a_seed_are_compared_by_the_convs_alone(monkeypatch):
    monkeypatch.setattr(outputs_module, "seeded", lambda model: model)
    result = comparison_of(dropout())
    assert result.within_tolerance
    assert any("is random" in note and "the one Conv is right alone" in note for note in result.notes)
    make_our_convs_wrong(monkeypatch, 1.02)
    assert not comparison_of(dropout()).within_tolerance


def test_random_outputs_of_another_shape_in_each_run_are_timed_and_compared():
    nodes = "d = Dropout(c, ratio, training)  y = NonZero(d)"
    model = after_a_conv(nodes, RATIO, TRAINING, outputs="int64[4, count] y")
    result = comparison_of(model)
    assert result.within_tolerance and result.default.times.runs == 20
    assert any("its outputs have other shapes or types" in note for note in result.notes)


# In the last two cases the default side may by chance be within the tolerance while ours is not.
@pytest.mark.parametrize(
    ("depth", "seed", "side", "channels"),
    [(2, 2, 16, 16), (6, 6, 16, 16), (12, 12, 16, 16), (20, 20, 16, 16), (6, 102, 16, 16), (6, 111, 16, 16)],
)
def test_chain_of_quantised_convs_that_are_right_alone_agrees(depth, seed, side, channels):
    assert comparison_of(quantised_chain(depth, seed, side, channels)).within_tolerance


def test_quantised_chain_notes_the_criterion_of_its_verdict():
    result = comparison_of(quantised_chain(12, 12))
    assert result.default.relative_l2_error > result.tolerance < result.convswap.relative_l2_error
    (note,) = (note for note in result.notes if "cannot be held to float64" in note)
    assert "each of 12 Convs is right alone" in note and "The model quantises" in note
    assert comparison_verdict(result).startswith("The outputs agree: relative L2 error ")
    assert "a note says why that is right" in comparison_verdict(result)


@pytest.mark.parametrize("time_layers", [False, True])
def test_wrong_conv_in_a_quantised_chain_is_found(time_layers, monkeypatch):
    # Near the sum of 20 roundings, so that the end-to-end error cannot show it.
    make_our_convs_wrong(monkeypatch, 1.003)
    result = compare(quantised_chain(20, 20), device="cpu", time_layers=time_layers)
    assert result.convswap.relative_l2_error > result.tolerance
    assert not result.within_tolerance
    assert comparison_verdict(result).startswith("THE OUTPUTS DIFFER: relative L2 error")


def cancelling(offset: float) -> onnx.ModelProto:
    """Return the variance of values around `offset`, as the mean square minus the squared mean."""
    nodes = """
      a = Add(c, offset)
      squares = Mul(a, a)
      mean_square = ReduceMean <axes = [2, 3]> (squares)
      mean = ReduceMean <axes = [2, 3]> (a)
      square_mean = Mul(mean, mean)
      y = Sub(mean_square, square_mean)"""
    return after_a_conv(nodes, constant("offset", np.float32(offset)), outputs="float[2, 4, 1, 1] y")


@pytest.mark.parametrize("offset", [300.0, 1000.0, 5000.0])
def test_ill_conditioned_model_is_compared_by_the_error_of_the_default_side(offset):
    result = comparison_of(cancelling(offset))
    assert result.within_tolerance
    if offset > 300:
        assert result.default.relative_l2_error > result.tolerance
        assert any("output 'y' cannot be held to float64" in note for note in result.notes)


def test_wrong_conv_in_an_ill_conditioned_model_is_found(monkeypatch):
    make_our_convs_wrong(monkeypatch, 1.01)
    assert not comparison_of(cancelling(1000.0)).within_tolerance


def test_tolerance_below_that_of_the_arithmetic_is_applied_as_given():
    assert comparison_of(quantised_chain(12, 12)).within_tolerance
    assert not comparison_of(quantised_chain(12, 12), tolerance=1e-3).within_tolerance


def test_output_that_is_right_does_not_hide_a_wrong_one(monkeypatch):
    model = cancelling(5000.0)
    model.graph.output.append(tensor_info("c", *C))
    assert comparison_of(model).within_tolerance
    make_our_convs_wrong(monkeypatch, 1.01)
    result = comparison_of(model)
    assert any("output 'c' is wrong: convswap is off by 1.0e-02" in note for note in result.notes)
    assert not result.within_tolerance


@pytest.mark.parametrize("seed", range(3))
def test_classes_of_pixels_whose_scores_tie_are_compared_by_the_fraction_that_differs(seed):
    result = comparison_of(class_map(seed))
    assert result.within_tolerance
    fraction = result.elements_that_differ["y"]["convswap"]
    assert 0 < fraction < 0.002
    assert checked(result)["elements_that_differ"]["y"]["convswap"] == fraction
    assert "of its elements differ in output 'y', and at most 0.5 % may" in comparison_verdict(result)


def test_wrong_conv_before_an_argmax_is_found(monkeypatch):
    # Scaling our Convs would leave the largest score the largest, so our classes are replaced by zeros.
    monkeypatch.setattr(
        outputs_module, "run_named", lambda session, feeds: {"y": np.zeros((1, 128, 128), np.int64)}
    )
    module = importlib.import_module("convswap.comparison.compare")
    original = module.run_named
    calls = iter([original, lambda session, feeds: {"y": np.zeros((1, 128, 128), np.int64)}])
    monkeypatch.setattr(module, "run_named", lambda session, feeds: next(calls)(session, feeds))
    result = comparison_of(class_map(0))
    assert not result.within_tolerance
    assert "THE OUTPUTS DIFFER" in comparison_verdict(result) and "at most 0.5 % may" in comparison_verdict(
        result
    )


def labels(as_strings: bool) -> onnx.ModelProto:
    nodes = "g = GlobalAveragePool(c)  f = Flatten(g)  k = ArgMax <axis = 1, keepdims = 0> (f)"
    if not as_strings:
        half = constant("half", np.float32(0.5))
        return after_a_conv(f"{nodes}  y = Greater(f, half)", half, outputs="bool[2, 4] y")
    names = 'keys_int64s = [0, 1, 2, 3], values_strings = ["ant", "bee", "cat", "dog"]'
    nodes += f"  y = ai.onnx.ml.LabelEncoder <{names}> (k)"
    return after_a_conv(nodes, outputs="string[2] y", domains="ai.onnx.ml:2")


@pytest.mark.parametrize("as_strings", [False, True])
def test_strings_and_truth_values_as_only_outputs_are_compared(as_strings, monkeypatch):
    result = comparison_of(labels(as_strings))
    assert result.within_tolerance and result.top1_agreement == 1.0
    written = checked(result)
    assert written["elements_that_differ"] == {"y": {"default": 0.0, "convswap": 0.0}}
    make_our_convs_wrong(monkeypatch, -1.0)
    wrong = comparison_of(labels(as_strings))
    assert not wrong.within_tolerance
    assert "% of its elements differ in output 'y'" in comparison_verdict(wrong)


def test_sequences_are_compared_element_by_element(monkeypatch):
    model = after_a_conv("y = SplitToSequence <axis = 1> (c)", outputs="seq(float[]) y")
    assert comparison_of(model).within_tolerance
    make_our_convs_wrong(monkeypatch, 1.5)
    wrong = comparison_of(model)
    assert any("output 'y[0]' is wrong" in note for note in wrong.notes)


def test_maps_are_compared_by_their_keys_and_values(monkeypatch):
    nodes = """
      g = GlobalAveragePool(c)
      f = Flatten(g)
      p = Softmax(f)
      y = ai.onnx.ml.ZipMap <classlabels_int64s = [3, 1, 2, 0]> (p)"""
    model = after_a_conv(nodes, outputs="y", domains="ai.onnx.ml:3")
    number = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    maps = helper.make_sequence_type_proto(helper.make_map_type_proto(TensorProto.INT64, number))
    model.graph.output[0].type.CopyFrom(maps)
    result = comparison_of(model)
    assert result.within_tolerance and 0 < result.convswap.relative_l2_error < 1e-6
    assert result.elements_that_differ == {"y.keys": {"default": 0.0, "convswap": 0.0}}
    make_our_convs_wrong(monkeypatch, 2.0)
    assert any("output 'y.values' is wrong" in note for note in comparison_of(model).notes)


def test_optional_outputs_are_compared():
    model = after_a_conv("y = Optional(c)", outputs="optional(float[]) y")
    assert comparison_of(model).within_tolerance


def test_model_without_a_float64_reference_is_compared_with_the_cpu_provider(monkeypatch):
    def fails(model, feeds):
        raise ConvswapError("cannot evaluate the model in float64: no such luck")

    monkeypatch.setattr(outputs_module, "evaluate", fails)
    result = comparison_of(small_model())
    assert result.within_tolerance
    reference = "the CPU provider's answer in float32 is the reference"
    assert f"{reference}: cannot evaluate the model in float64: no such luck" in result.notes
    make_our_convs_wrong(monkeypatch, 1.5)
    assert not comparison_of(small_model()).within_tolerance


def test_float64_outputs_of_another_shape_are_no_reference(monkeypatch):
    evaluate = outputs_module.evaluate

    def one_less(model, feeds):
        reference = evaluate(model, feeds)
        return type(reference)([values[..., :-1] for values in reference.outputs], reference.in_float32)

    monkeypatch.setattr(outputs_module, "evaluate", one_less)
    result = comparison_of(small_model())
    assert result.within_tolerance
    assert any("its outputs have other shapes or types" in note for note in result.notes)


@pytest.mark.parametrize("trips", [3, 0])
def test_what_a_loop_collects_is_compared(trips):
    kind = "float[2, 4, 6, 6]"
    nodes = f"""
      y, all = Loop <
        body = body (int64 count, bool going, {kind} v) => (bool still, {kind} next, float[] each) {{
          still = Identity(going)
          next = Mul(v, half)
          each = Identity(next)
        }}
      > (trips, , c)"""
    tensors = constant("trips", np.array(trips)), constant("half", np.float32(0.5))
    model = after_a_conv(nodes, *tensors, outputs=f"{kind} y, float[t, 2, 4, 6, 6] all")
    result = comparison_of(model)
    assert result.within_tolerance and not any("is the reference" in note for note in result.notes)
    assert any("of which nothing was compared: 1" in note for note in result.notes) == (trips == 0)


def test_float16_conv_that_overflows_on_the_cpu_is_an_error_and_a_note_says_why():
    result = comparison_of(float16_overflow(), inputs=FLOAT16_FEEDS)
    assert not result.within_tolerance and result.default.relative_l2_error < 1e-2
    assert FLOAT16_ON_CPU in result.notes and FLOAT16_ON_CPU in result.to_json()["notes"]
    assert FLOAT16_ON_CPU not in comparison_of(small_model()).notes


# Outputs without a value to compare.


def adding_values(values: np.ndarray) -> onnx.ModelProto:
    """Return a model that adds `values`, some NaN or infinite, to c, for two samples."""
    return after_a_conv("y = Add(c, v)", constant("v", values))


def empty_output() -> onnx.ModelProto:
    tensors = constant("zero", np.array([0])), constant("one", np.array([1]))
    return after_a_conv("y = Slice(c, zero, zero, one)", *tensors, outputs="float[2, 0, 6, 6] y")


@pytest.mark.parametrize("kind", ["empty", "nan", "inf"])
@pytest.mark.parametrize("time_layers", [False, True])
def test_outputs_without_a_finite_element_are_no_agreement(kind, time_layers, monkeypatch):
    model = empty_output() if kind == "empty" else adding_values(np.full(C, float(kind), np.float32))
    result = compare(model, device="cpu", time_layers=time_layers)
    written = checked(result)
    assert result.top1_agreement is None and written["top1_agreement"] is None
    assert written["relative_l2_error"] == {"default": None, "convswap": None}
    assert result.within_tolerance and "the one Conv is right alone" in comparison_verdict(result)
    assert "samples without a class on either side: 2" in "".join(result.notes)
    assert "outputs without an element that is finite, of which nothing was compared: 1" in result.notes
    assert "no image has a class on either side" in printed_text(result)
    assert "100 %" not in printed_text(result) + compare_html(result)
    make_our_convs_wrong(monkeypatch, 1.5)
    assert not compare(model, device="cpu", time_layers=time_layers).within_tolerance


def test_samples_without_a_class_do_not_count_as_the_same():
    values = np.zeros(C, np.float32)
    values[1, 2, 3, 4] = np.nan
    result = comparison_of(adding_values(values))
    assert result.top1_agreement == 1.0 and result.without_class == 1 and result.within_tolerance
    assert "top-1 agreement on 100 % of the images that have a class" in printed_text(result)


def test_where_no_conv_has_a_finite_output_either_nothing_could_be_compared():
    model = adding_values(np.zeros(C, np.float32))
    model.graph.initializer[0].CopyFrom(constant("w", np.full((4, 3, 3, 3), np.nan, np.float32)))
    result = compare(model, device="cpu")
    assert comparison_verdict(result).startswith(
        "NOTHING COULD BE COMPARED: no output has an element that is finite, "
    )
    assert result.verdict.evidence.endswith(
        "no Conv could be checked alone: give --inputs for which it has some."
    )
    assert not result.within_tolerance
    assert checked(result)["layers"][0]["relative_l2_error"] == {"default": None, "convswap": None}


@pytest.mark.parametrize(
    ("first", "second", "fraction", "without_class"),
    [
        ([0, 1, 2], [0, 1, 1], 2 / 3, 0),
        ([0, 1], [0, 1, 1], 2 / 3, 0),
        ([NO_CLASS, 1], [NO_CLASS, 1], 1.0, 1),
        ([NO_CLASS, 1], [0, 1], 0.5, 0),
        ([NO_CLASS], [NO_CLASS], None, 1),
        ([], [], None, 0),
        (["ant", "bee"], ["ant", "cat"], 0.5, 0),
    ],
)
def test_agreement_is_over_the_samples_that_have_a_class(first, second, fraction, without_class):
    assert agreement(np.array(first), np.array(second)) == (fraction, without_class)
