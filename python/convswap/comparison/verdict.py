"""Whether the answers of two sides agree: by float64, and where that cannot decide, by each other.

An answer that is as close to float64 as the tolerance asks is right. Where one is not, the reason may be the
model: it draws random numbers, it rounds to steps, or it makes much of little. Then the default side is no
closer, or its own answer changes when it runs again, or when its Convs are off by no more than their
arithmetic rounds. Ours is right there where it agrees with the default side, or is not much further off than
that, and every Conv alone is right. A Conv that computes something else is found by the last: no such model
makes a Conv wrong on its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from convswap.output.tables import error
from convswap.reference.metrics import MAX_DIFFERING_SHARE, NO_DIFFERENCE, Difference

# The most that our error may be, as a multiple of the larger of two: the default side's error, and its
# largest change in eight perturbed runs. In 75 of 480 chains of 2 to 20 quantised Convs, each Conv of which
# was right alone, our answer missed the tolerance, by at most 1.4 times that. The default side's error alone
# would not do: in six of those chains it was 0.
MAX_ERROR_RATIO = 2.0


@dataclass(frozen=True)
class OutputErrors:
    """How far each side's answer for one output is from the reference, and from the other side's.

    The other fields are measured only where our side misses the tolerance. `again` is how far the default
    side's answer is from that of its second run. `perturbed` is how far it is when its inputs and the outputs
    of its Convs are multiplied by 1 + or - `perturbation`. `seeded` is how far the sides are from each other
    when all random numbers have the same seeds.
    """

    name: str
    is_floating: bool
    default: Difference
    ours: Difference
    between: Difference
    again: Difference = NO_DIFFERENCE
    perturbed: Difference = NO_DIFFERENCE
    perturbation: float = 0.0
    seeded: Difference | None = None


@dataclass(frozen=True)
class ConvsAlone:
    """How many Convs were checked alone, on their real inputs, and the names of those that are wrong."""

    checked: int
    wrong: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """Whether the answers agree; by what, in words that follow "The answers agree:"; notes for a reader.

    They agree as well where `nothing_compared`: neither an output nor a Conv alone has a finite element.
    """

    agree: bool
    found: str
    notes: tuple[str, ...] = ()
    nothing_compared: bool = False


@dataclass(frozen=True)
class Measure:
    """The `tolerance` that was asked for, and the `usual` one of the arithmetic."""

    tolerance: float
    usual: float

    @property
    def is_strict(self) -> bool:
        """Whether the tolerance is tighter than the arithmetic allows: a miss then shows no fault."""
        return self.tolerance < self.usual

    def most(self, output: OutputErrors) -> float:
        """Return the largest error that `output` may have."""
        if output.is_floating:
            return self.tolerance
        return MAX_DIFFERING_SHARE * (self.tolerance / self.usual if self.is_strict else 1.0)

    def is_missed(self, output: OutputErrors) -> bool:
        """Return whether our error in `output` is larger than that."""
        return not output.ours.relative <= self.most(output)


@dataclass
class _Case:
    """The inputs of a verdict other than the outputs, and its notes."""

    measure: Measure
    quantises: bool
    alone: Callable[[], ConvsAlone]
    notes: list[str] = field(default_factory=list)


def conv_is_right(default: float, ours: float, tolerance: float) -> bool:
    """Return whether our Conv alone is right, given the errors of both sides."""
    return ours <= tolerance or (default > tolerance and ours <= MAX_ERROR_RATIO * default)


def judge(
    outputs: Sequence[OutputErrors], measure: Measure, *, quantises: bool, alone: Callable[[], ConvsAlone]
) -> Verdict:
    """Return whether our answers in `outputs` are right; see the module's text.

    Args:
        outputs: those that have a finite element; where there are none, the Convs alone say whether ours is
            right.
        measure: where it is strict it is taken at its word, and ours may only agree with the default side.
        quantises: whether the model rounds to steps, which a note then gives as the reason.
        alone: finds out how the Convs do alone; called where that has a say.
    """
    case = _Case(measure, quantises, alone)
    if not outputs:
        return _without_outputs(alone())
    wrong = [output for output in outputs if not _is_right(output, case)]
    if wrong and _are_ties(wrong, outputs, case):
        wrong = []
    if wrong:
        worst = max(wrong, key=lambda output: output.ours.relative / max(measure.most(output), 1e-300))
        found = _within(worst, case) if not worst.is_floating else _l2(worst, case)
        return Verdict(False, found, tuple(_wrong_note(output) for output in wrong))
    return Verdict(True, _kept(outputs, case), tuple(case.notes))


def _without_outputs(convs: ConvsAlone) -> Verdict:
    """Return the verdict on outputs without a finite element, as of a detector that finds nothing."""
    found = "no output has an element that is finite, on either side"
    if convs.wrong:
        return Verdict(False, f"{found}, and these Convs are wrong alone: {', '.join(convs.wrong)}.")
    return Verdict(True, f"{found}; {_all_right(convs)}.", nothing_compared=not convs.checked)


def _is_right(output: OutputErrors, case: _Case) -> bool:
    most = case.measure.most(output)
    if not case.measure.is_missed(output):
        if not output.is_floating and output.ours.relative > 0:
            case.notes.append(_elements_note(output))
        return True
    if output.again.relative > most:
        return _is_right_random(output, case)
    if not output.default.relative <= most and output.between.relative <= most:
        between = f"but the sides differ from each other by {_told(output, output.between)} only"
        case.notes.append(f"{_off_too(output)}, {between}{_why(output, case)}")
        return True
    if case.measure.is_strict or not _is_near(output, most):
        return False
    convs = case.alone()
    if convs.wrong:
        return False
    ours = f"ours by {_told(output, output.ours)}; {_all_right(convs)}"
    case.notes.append(f"{_off_too(output)}, {ours}{_why(output, case)}")
    return True


def _is_near(output: OutputErrors, most: float) -> bool:
    """Return whether our error is at most twice the default side's, or that of its perturbed runs."""
    ours, default, perturbed = output.ours.distance, output.default, output.perturbed
    return (
        default.relative > most and math.isfinite(ours) and ours <= MAX_ERROR_RATIO * default.distance
    ) or (perturbed.relative > most and ours <= MAX_ERROR_RATIO * perturbed.distance)


def _is_right_random(output: OutputErrors, case: _Case) -> bool:
    """Return whether ours is right in an output that differs between two runs of the default side."""
    again = f"the default side differs from its own second run by {_told(output, output.again)}"
    if output.seeded is not None and output.seeded.relative <= case.measure.most(output):
        seeded = f"with the same seeds, the sides differ by {_told(output, output.seeded)}"
        case.notes.append(f"output {output.name!r} is random: {again}; {seeded}")
        return True
    convs = case.alone()
    furthest = MAX_ERROR_RATIO * max(output.again.distance, output.default.distance)
    if case.measure.is_strict or convs.wrong or not convs.checked or not output.ours.distance <= furthest:
        return False
    case.notes.append(f"output {output.name!r} is random: {again}; {_all_right(convs)}")
    return True


def _are_ties(wrong: Sequence[OutputErrors], outputs: Sequence[OutputErrors], case: _Case) -> bool:
    """Return whether only names are `wrong`, such as the order of classes, and the numbers are right."""
    if case.measure.is_strict or all(not output.is_floating for output in outputs):
        return False
    if any(output.is_floating or math.isinf(output.ours.relative) for output in wrong):
        return False
    convs = case.alone()
    if convs.wrong:
        return False
    case.notes += [
        f"{share(output.ours.relative)} of the elements of output {output.name!r} differ from float64's, but "
        f"all outputs of floating-point numbers agree, and {_all_right(convs)}: scores that tie can be why"
        for output in wrong
    ]
    return True


def _off_too(output: OutputErrors) -> str:
    default = f"the default side is off by {_told(output, output.default)} itself"
    return f"output {output.name!r} cannot be held to float64: {default}"


def _why(output: OutputErrors, case: _Case) -> str:
    if case.quantises:
        return ". The model quantises: a value between two steps goes to either, and others follow it"
    if output.perturbed.relative > case.measure.most(output):
        changes = f"the default side's answer changes by {_told(output, output.perturbed)}"
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


def _told(output: OutputErrors, found: Difference) -> str:
    if math.isinf(found.relative):
        return "its shape, or values that are not finite"
    return f"{found.relative:.1e}" if output.is_floating else f"{share(found.relative)} of its elements"


def share(value: float) -> str:
    """Return a share in per cent, with two significant digits."""
    return f"{100 * value:.2g} %"


def _elements_note(output: OutputErrors) -> str:
    return (
        f"output {output.name!r} is of whole numbers, truth values or strings: {share(output.ours.relative)} "
        f"of its elements differ from float64's, {share(output.default.relative)} by default; up to "
        f"{share(MAX_DIFFERING_SHARE)} may, for where two scores tie either is right"
    )


def _wrong_note(output: OutputErrors) -> str:
    return (
        f"output {output.name!r} is wrong: ours is off by {_told(output, output.ours)}, the default side by "
        f"{_told(output, output.default)}, and they differ from each other by {_told(output, output.between)}"
    )


def _kept(outputs: Sequence[OutputErrors], case: _Case) -> str:
    """Return the text behind "The answers agree:", about the numbers where there are any."""
    judged = [output for output in outputs if output.is_floating] or outputs
    worst = max(judged, key=lambda output: output.ours.relative)
    if not case.measure.is_missed(worst):
        return _l2(worst, case) if worst.is_floating else _within(worst, case)
    both = worst.ours.relative, worst.default.relative
    ours, default = map(error, both) if worst.is_floating else map(share, both)
    kind = "relative L2 error" if worst.is_floating else "elements that differ:"
    return f"{kind} {ours}, by default {default}; a note says why that is right."


def _l2(output: OutputErrors, case: _Case) -> str:
    return f"relative L2 error {error(output.ours.relative)}, at most {case.measure.tolerance:g} asked for."


def _within(output: OutputErrors, case: _Case) -> str:
    differ = _told(output, output.ours)
    return f"{differ} differ in output {output.name!r}, and at most {share(case.measure.most(output))} may."
