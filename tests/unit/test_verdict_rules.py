"""Verdicts follow from the differences of outputs, and from single-node Convs only if needed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from convswap.comparison.verdict import (
    MAX_DIFFERING_SHARE,
    ConvsAlone,
    OutputErrors,
    Tolerances,
    Verdict,
    codes_are_right,
    conv_is_right,
    judge,
    with_codes,
)
from convswap.reference.metrics import NOT_COMPARABLE, CodeDifference, Difference

USUAL = Tolerances(2e-3, 2e-3)
RIGHT, WRONG = ConvsAlone(3), ConvsAlone(3, ("conv2",))


def apart(relative: float) -> Difference:
    return Difference(relative, 10 * relative)


def output(default: float, ours: float, between: float = 1.0, **more) -> OutputErrors:
    fields = {name: apart(value) if isinstance(value, float) else value for name, value in more.items()}
    return OutputErrors(
        "y", fields.pop("is_floating", True), apart(default), apart(ours), apart(between), **fields
    )


def judged(
    *outputs: OutputErrors, alone: ConvsAlone | None = None, tolerances: Tolerances = USUAL
) -> Verdict:
    def find() -> ConvsAlone:
        assert alone is not None, "the Convs alone have no say here"
        return alone

    return judge(outputs, tolerances, quantises=False, check_convs=find)


def test_an_error_within_the_tolerance_is_enough_by_itself():
    assert judged(output(0.5, 1e-3)) == Verdict(True, "relative L2 error 1.00e-03, at most 0.002 asked for.")


def test_an_error_beyond_the_tolerance_is_wrong():
    verdict = judged(output(1e-3, 2.1e-3, between=1.5e-3))
    assert not verdict.agree
    assert verdict.evidence == "relative L2 error 2.10e-03, at most 0.002 asked for."
    assert "convswap is off by 2.1e-03, the default side by 1.0e-03" in verdict.notes[0]


def test_sides_that_agree_where_neither_is_near_float64_are_right():
    verdict = judged(output(0.5, 0.5, between=1e-4))
    assert verdict.agree and "differ from each other by 1.0e-04 only" in verdict.notes[0]


@pytest.mark.parametrize(("ours", "agree"), [(0.05, True), (0.079, True), (0.081, False), (math.inf, False)])
def test_ours_may_be_twice_as_far_off_as_the_default_side(ours, agree):
    assert judged(output(0.04, ours), alone=RIGHT).agree is agree
    assert not judged(output(0.04, ours), alone=WRONG).agree


@pytest.mark.parametrize(("perturbed", "agree"), [(0.05, True), (0.02, False), (math.inf, True)])
def test_a_perturbation_bounds_our_error_where_the_default_side_has_luck(perturbed, agree):
    assert judged(output(0.0, 0.05, perturbed=perturbed), alone=RIGHT).agree is agree
    assert not judged(output(0.0, 0.05, perturbed=perturbed), alone=WRONG).agree


def test_values_that_are_not_finite_on_the_default_side_alone_do_not_condemn_ours():
    bad = replace(output(0.0, 0.01), default=NOT_COMPARABLE)
    assert judged(bad, alone=RIGHT).agree
    assert not judged(replace(bad, convswap=NOT_COMPARABLE), alone=RIGHT).agree


def test_random_output_needs_the_same_answer_by_the_same_seeds_or_right_convs():
    random = output(1.0, 1.0, again=1.0)
    assert judged(replace(random, seeded=apart(1e-6))).agree
    assert judged(replace(random, seeded=apart(0.1)), alone=RIGHT).agree
    assert not judged(replace(random, seeded=apart(0.1)), alone=WRONG).agree
    assert not judged(random, alone=ConvsAlone(0)).agree
    assert not judged(replace(random, convswap=apart(2.1)), alone=RIGHT).agree


def test_a_tolerance_below_the_usual_one_leaves_only_agreement():
    strict = Tolerances(1e-6, 2e-3)
    assert not judged(output(0.5, 0.5), tolerances=strict).agree
    assert judged(output(0.5, 0.5, between=1e-7), tolerances=strict).agree
    assert not judged(output(0.0, 1e-4, is_floating=False), tolerances=strict).agree


def test_half_a_per_cent_of_whole_numbers_may_differ():
    at_most = output(0.0, MAX_DIFFERING_SHARE, is_floating=False)
    verdict = judged(at_most)
    assert verdict.agree and "0.5 % of its elements differ in output 'y'" in verdict.evidence
    assert "either order is right if two scores tie" in verdict.notes[0]
    assert not judged(replace(at_most, convswap=apart(0.006))).agree
    assert judged(replace(at_most, convswap=apart(0.006), perturbed=apart(0.006)), alone=RIGHT).agree


def test_order_of_what_ties_beside_numbers_that_agree_is_no_difference():
    indices = replace(output(0.0, 0.4, is_floating=False), name="indices")
    verdict = judged(output(0.0, 1e-6), indices, alone=RIGHT)
    assert verdict.agree and verdict.evidence.startswith("relative L2 error 1.00e-06")
    assert "40 % of the elements of output 'indices' differ" in verdict.notes[0]
    assert not judged(output(0.0, 1e-6), indices, alone=WRONG).agree
    assert not judged(output(0.0, 0.1), indices, alone=RIGHT).agree
    assert not judged(output(0.0, 1e-6), replace(indices, convswap=NOT_COMPARABLE), alone=RIGHT).agree


def test_conv_alone_is_judged_alike():
    assert conv_is_right(1e-7, 1e-3, 2e-3)
    assert conv_is_right(5e-3, 9e-3, 2e-3)
    assert not conv_is_right(1e-7, 3e-3, 2e-3)
    assert not conv_is_right(5e-3, 2e-2, 2e-3)
    assert not conv_is_right(math.nan, math.nan, 2e-3)


def test_where_no_output_has_an_element_the_convs_alone_decide():
    verdict = judged(alone=RIGHT)
    assert verdict.agree and verdict.evidence.endswith("each of 3 Convs is right alone.")
    verdict = judged(alone=WRONG)
    assert not verdict.agree and verdict.evidence.endswith("wrong alone: conv2.")


def test_a_default_side_whose_error_is_no_number_has_missed():
    verdict = judged(output(math.nan, math.nan, between=0.0))
    assert verdict.agree and "differ from each other by 0.0e+00 only" in verdict.notes[0]


def test_codes_are_right_if_one_of_a_thousand_is_one_step_off():
    exact = CodeDifference(0, 5000, 0)
    assert codes_are_right(exact, exact)
    assert codes_are_right(exact, CodeDifference(5, 5000, 1))
    assert not codes_are_right(exact, CodeDifference(6, 5000, 1))
    assert not codes_are_right(exact, CodeDifference(1, 5000, 2))
    # A share of a thousandth is less than one code here.
    assert codes_are_right(exact, CodeDifference(1, 100, 1))


def test_codes_are_right_if_the_default_side_differs_by_about_as_much():
    default = CodeDifference(100, 5000, 1)
    assert codes_are_right(default, CodeDifference(200, 5000, 1))
    assert not codes_are_right(default, CodeDifference(201, 5000, 1))
    assert not codes_are_right(default, CodeDifference(100, 5000, 2))


def test_model_with_a_wrong_quant_conv_is_wrong_whatever_its_outputs():
    right = Verdict(True, "relative L2 error 0.00e+00.", ("a note",))
    convs = ConvsAlone(2, (), {"first": CodeDifference(0, 1000, 0), "second": CodeDifference(1, 1000, 1)})
    verdict = with_codes(right, convs)
    assert verdict.agree and verdict.evidence == right.evidence
    assert "at least 99.9 % equal float64's, and the largest difference is 1 step" in verdict.notes[1]
    verdict = with_codes(right, replace(convs, wrong=("second",)))
    assert not verdict.agree
    assert verdict.evidence.startswith("QuantConv second alone gives 99.9 % equal codes")
    assert with_codes(right, ConvsAlone(2, ("first",))) == right
