"""The verdict whether the outputs of two sides agree: by float64 and, if that cannot decide, by each other.

An output of the convswap side is right if its error against float64 is within the tolerance. If it is not,
the model may be the reason: it draws random numbers, it quantises, or it is ill-conditioned. Then the error
of the default side is as large, or its output changes: when it runs again, or when its Convs are perturbed by
their rounding. In these cases an output of the convswap side is right if it agrees with the default side. It
is also right if its error is not much larger than the default side's error or change, and every Conv alone is
right. The Convs alone reveal a kernel that computes something else, since no such model makes a Conv alone
wrong.

A QuantConv alone is right if at most one code of a thousand differs from float64's, by one step, for equal
input codes, or if the default side differs by about as much. The outputs count as different if a QuantConv is
wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from convswap.output.tables import error
from convswap.reference.metrics import (
    MAX_DIFFERING_CODES,
    MAX_DIFFERING_SHARE,
    NO_DIFFERENCE,
    CodeDifference,
    Difference,
)

# The maximum error of the convswap side, as a multiple of the larger of two: the default side's error, and
# the default side's largest change in eight perturbed runs. In 75 of 480 chains of 2 to 20 quantised Convs,
# each Conv of which was right alone, the error exceeded the tolerance, and was at most 1.4 times the larger
# of the two. The default side's error alone is not enough: in six of those chains it was 0.
MAX_ERROR_RATIO = 2.0


@dataclass(frozen=True)
class OutputErrors:
    """The differences of one output of each side from the reference, and between the sides.

    The other fields are measured only if the convswap side exceeds the tolerance. `again` is the difference
    between two runs of the default side. `perturbed` is the default side's change when its inputs and the
    outputs of its Convs are multiplied by 1 + or - `perturbation`. `seeded` is the difference between the
    sides when all random numbers have the same seeds.
    """

    name: str
    is_floating: bool
    default: Difference
    convswap: Difference
    between: Difference
    again: Difference = NO_DIFFERENCE
    perturbed: Difference = NO_DIFFERENCE
    perturbation: float = 0.0
    seeded: Difference | None = None


@dataclass(frozen=True)
class ConvAlone:
    """The errors of both sides of a Conv alone against float64; `codes` if its results are codes."""

    default: float
    convswap: float
    codes: tuple[CodeDifference, CodeDifference] | None = None

    def is_right(self, tolerance: float) -> bool:
        """Return whether the Conv is right on the convswap side."""
        if self.codes is None:
            return conv_is_right(self.default, self.convswap, tolerance)
        return codes_are_right(*self.codes)


@dataclass(frozen=True)
class ConvsAlone:
    """The number of Convs that were checked alone, on their real inputs, and the names of the wrong Convs.

    `codes` has the differences of the convswap side for each QuantConv that gives codes, `wrong_codes` those
    that are wrong.
    """

    checked: int
    wrong: tuple[str, ...] = ()
    codes: Mapping[str, CodeDifference] = field(default_factory=dict)

    @property
    def wrong_codes(self) -> Mapping[str, CodeDifference]:
        """The differences of the wrong nodes that give codes."""
        return {name: difference for name, difference in self.codes.items() if name in self.wrong}


@dataclass(frozen=True)
class Verdict:
    """The verdict: whether the outputs agree, the evidence, and notes for a reader.

    `evidence` is the text after "The outputs agree:". If `nothing_compared`, neither an output nor a Conv
    alone has a finite element, and `agree` is false.
    """

    agree: bool
    evidence: str
    notes: tuple[str, ...] = ()
    nothing_compared: bool = False


@dataclass(frozen=True)
class Tolerances:
    """The `requested` tolerance, and the `usual` tolerance of the arithmetic."""

    requested: float
    usual: float

    @property
    def is_strict(self) -> bool:
        """Whether the requested tolerance is below the usual one, so that a larger error shows no fault."""
        return self.requested < self.usual

    def limit(self, output: OutputErrors) -> float:
        """Return the largest error that `output` may have."""
        if output.is_floating:
            return self.requested
        return MAX_DIFFERING_SHARE * (self.requested / self.usual if self.is_strict else 1.0)

    def is_exceeded(self, output: OutputErrors) -> bool:
        """Return whether the error of the convswap side in `output` is above the limit."""
        return not output.convswap.relative <= self.limit(output)


@dataclass
class _Case:
    """The inputs of a verdict other than the outputs, and its notes."""

    tolerances: Tolerances
    quantises: bool
    check_convs: Callable[[], ConvsAlone]
    notes: list[str] = field(default_factory=list)


def conv_is_right(default: float, convswap: float, tolerance: float) -> bool:
    """Return whether a Conv alone is right on the convswap side, given the errors of both sides."""
    return convswap <= tolerance or (default > tolerance and convswap <= MAX_ERROR_RATIO * default)


def codes_are_right(default: CodeDifference, convswap: CodeDifference) -> bool:
    """Return whether the codes of the convswap side are right, given the differences of both sides."""
    if convswap.is_rounding:
        return True
    is_near = convswap.differing <= MAX_ERROR_RATIO * default.differing
    return not default.is_rounding and convswap.steps <= default.steps and is_near


def with_codes(verdict: Verdict, convs: ConvsAlone) -> Verdict:
    """Return `verdict` with that on the QuantConv nodes of `convs` that give codes."""
    if not convs.codes:
        return verdict
    least = min(convs.codes.values(), key=lambda difference: difference.equal)
    steps = max(difference.steps for difference in convs.codes.values())
    note = (
        f"codes of each QuantConv alone, for equal input codes: at least {_floored(least.equal)} equal "
        f"float64's, and the largest difference is {steps} {'step' if steps == 1 else 'steps'}"
    )
    if not convs.wrong_codes:
        return replace(verdict, notes=(*verdict.notes, note))
    name, worst = max(convs.wrong_codes.items(), key=lambda item: (item[1].steps, -item[1].equal))
    evidence = (
        f"QuantConv {name} alone gives {_floored(worst.equal)} equal codes, largest difference "
        f"{worst.steps}; at least {_floored(1 - MAX_DIFFERING_CODES)} have to be equal, and none more than "
        "one step off."
    )
    return Verdict(False, evidence, (*verdict.notes, note))


def _floored(share_of_codes: float) -> str:
    """Return a share in per cent, which is 100 only if it is the whole."""
    return f"{math.floor(1e4 * share_of_codes + 1e-9) / 100:g} %"


def judge(
    outputs: Sequence[OutputErrors],
    tolerances: Tolerances,
    *,
    quantises: bool,
    check_convs: Callable[[], ConvsAlone],
) -> Verdict:
    """Return whether the convswap side is right in `outputs`; the module's docstring has the rules.

    Args:
        outputs: the outputs that have a finite element; if there are none, the Convs alone decide.
        tolerances: if they are strict, an output above the limit is right only if it agrees with the default
            side.
        quantises: whether the model quantises, which a note then gives as the reason.
        check_convs: checks the Convs alone; called only if that decides.
    """
    case = _Case(tolerances, quantises, check_convs)
    if not outputs:
        return _without_outputs(check_convs())
    wrong = [output for output in outputs if not _is_right(output, case)]
    if wrong and _are_ties(wrong, outputs, case):
        wrong = []
    if wrong:
        worst = max(
            wrong, key=lambda output: output.convswap.relative / max(tolerances.limit(output), 1e-300)
        )
        evidence = _l2_text(worst, case) if worst.is_floating else _elements_text(worst, case)
        return Verdict(False, evidence, tuple(_wrong_note(output) for output in wrong))
    return Verdict(True, _agreement_text(outputs, case), tuple(case.notes))


def _without_outputs(convs: ConvsAlone) -> Verdict:
    """Return the verdict on outputs without a finite element, as of a detector that detects nothing."""
    evidence = "no output has an element that is finite, on either side"
    if convs.wrong:
        return Verdict(False, f"{evidence}, and these Convs are wrong alone: {', '.join(convs.wrong)}.")
    if not convs.checked:
        advice = "give --inputs for which it has some"
        return Verdict(False, f"{evidence}; {_all_right(convs)}: {advice}.", nothing_compared=True)
    return Verdict(True, f"{evidence}; {_all_right(convs)}.")


def _is_right(output: OutputErrors, case: _Case) -> bool:
    limit = case.tolerances.limit(output)
    if not case.tolerances.is_exceeded(output):
        if not output.is_floating and output.convswap.relative > 0:
            case.notes.append(_elements_note(output))
        return True
    if output.again.relative > limit:
        return _is_right_random(output, case)
    if not output.default.relative <= limit and output.between.relative <= limit:
        between = f"but the sides differ from each other by {_difference_text(output, output.between)} only"
        case.notes.append(f"{_default_is_off(output)}, {between}{_reason(output, case)}")
        return True
    if case.tolerances.is_strict or not _is_near(output, limit):
        return False
    convs = case.check_convs()
    if convs.wrong:
        return False
    convswap = f"convswap by {_difference_text(output, output.convswap)}; {_all_right(convs)}"
    case.notes.append(f"{_default_is_off(output)}, {convswap}{_reason(output, case)}")
    return True


def _is_near(output: OutputErrors, limit: float) -> bool:
    """Return whether the error is at most MAX_ERROR_RATIO times the default side's error or change.

    Only errors and changes above `limit` count.
    """
    convswap, default, perturbed = output.convswap.distance, output.default, output.perturbed
    return (
        default.relative > limit
        and math.isfinite(convswap)
        and convswap <= MAX_ERROR_RATIO * default.distance
    ) or (perturbed.relative > limit and convswap <= MAX_ERROR_RATIO * perturbed.distance)


def _is_right_random(output: OutputErrors, case: _Case) -> bool:
    """Return whether an output is right that differs between two runs of the default side."""
    again = f"the default side differs from its own second run by {_difference_text(output, output.again)}"
    if output.seeded is not None and output.seeded.relative <= case.tolerances.limit(output):
        seeded = f"with the same seeds, the sides differ by {_difference_text(output, output.seeded)}"
        case.notes.append(f"output {output.name!r} is random: {again}; {seeded}")
        return True
    convs = case.check_convs()
    max_distance = MAX_ERROR_RATIO * max(output.again.distance, output.default.distance)
    is_near = output.convswap.distance <= max_distance
    if case.tolerances.is_strict or convs.wrong or not convs.checked or not is_near:
        return False
    case.notes.append(f"output {output.name!r} is random: {again}; {_all_right(convs)}")
    return True


def _are_ties(wrong: Sequence[OutputErrors], outputs: Sequence[OutputErrors], case: _Case) -> bool:
    """Return whether the `wrong` outputs are not floating-point, and all floating-point outputs are right.

    Such an output is the order of classes, which may change if two scores tie.
    """
    if case.tolerances.is_strict or all(not output.is_floating for output in outputs):
        return False
    if any(output.is_floating or math.isinf(output.convswap.relative) for output in wrong):
        return False
    convs = case.check_convs()
    if convs.wrong:
        return False
    case.notes += [
        f"{share(output.convswap.relative)} of the elements of output {output.name!r} differ from float64's, "
        f"but all outputs of floating-point numbers agree, and {_all_right(convs)}: scores that tie can be "
        "why"
        for output in wrong
    ]
    return True


def _default_is_off(output: OutputErrors) -> str:
    default = f"the default side is off by {_difference_text(output, output.default)} itself"
    return f"output {output.name!r} cannot be held to float64: {default}"


def _reason(output: OutputErrors, case: _Case) -> str:
    if case.quantises:
        return ". The model quantises: a value between two steps goes to either, and others follow it"
    if output.perturbed.relative > case.tolerances.limit(output):
        changes = f"the default side's answer changes by {_difference_text(output, output.perturbed)}"
        return (
            f". The model amplifies rounding: {changes} where its Convs are off by {output.perturbation:.0e}"
        )
    return ""


def _all_right(convs: ConvsAlone) -> str:
    if not convs.checked:
        return "no Conv could be checked alone"
    return (
        "the one Conv is right alone"
        if convs.checked == 1
        else f"each of {convs.checked} Convs is right alone"
    )


def _difference_text(output: OutputErrors, difference: Difference) -> str:
    if math.isinf(difference.relative):
        return "its shape, or values that are not finite"
    if output.is_floating:
        return f"{difference.relative:.1e}"
    return f"{share(difference.relative)} of its elements"


def share(value: float) -> str:
    """Return a share in per cent, with two significant digits."""
    return f"{100 * value:.2g} %"


def _elements_note(output: OutputErrors) -> str:
    return (
        f"output {output.name!r} is of whole numbers, truth values or strings: "
        f"{share(output.convswap.relative)} of its elements differ from float64's, "
        f"{share(output.default.relative)} by default; up to {share(MAX_DIFFERING_SHARE)} may, since "
        "either order is right if two scores tie"
    )


def _wrong_note(output: OutputErrors) -> str:
    return (
        f"output {output.name!r} is wrong: convswap is off by {_difference_text(output, output.convswap)}, "
        f"the default side by {_difference_text(output, output.default)}, and they differ from each other by "
        f"{_difference_text(output, output.between)}"
    )


def _agreement_text(outputs: Sequence[OutputErrors], case: _Case) -> str:
    """Return the text after "The outputs agree:", about floating-point outputs if there are any."""
    judged = [output for output in outputs if output.is_floating] or outputs
    worst = max(judged, key=lambda output: output.convswap.relative)
    if not case.tolerances.is_exceeded(worst):
        return _l2_text(worst, case) if worst.is_floating else _elements_text(worst, case)
    both = worst.convswap.relative, worst.default.relative
    convswap, default = map(error, both) if worst.is_floating else map(share, both)
    kind = "relative L2 error" if worst.is_floating else "elements that differ:"
    return f"{kind} {convswap}, by default {default}; a note says why that is right."


def _l2_text(output: OutputErrors, case: _Case) -> str:
    limit = case.tolerances.requested
    return f"relative L2 error {error(output.convswap.relative)}, at most {limit:g} asked for."


def _elements_text(output: OutputErrors, case: _Case) -> str:
    differ = _difference_text(output, output.convswap)
    limit = share(case.tolerances.limit(output))
    return f"{differ} differ in output {output.name!r}, and at most {limit} may."
