"""The plan of every Conv of a model: its algorithm, its launch shape, and why no other algorithm."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from convswap import _native
from convswap.errors import ConvswapError
from convswap.graph.algorithms import AUTO, TUNED
from convswap.graph.fusion.fuse import fusion_remarks
from convswap.graph.swap import DEFAULT_PRECISION
from convswap.inputs.model_with_data import UserModel
from convswap.inputs.sample_shapes import InputShape
from convswap.inputs.user_inputs import UserInputs
from convswap.output.tables import milliseconds, plain_table, print_notes, three_digits, versions_line
from convswap.planning.problems import PlannedConv, PlannedModel, PlanOptions, conv_problems, naming_conv
from convswap.runtime.cards import as_capability
from convswap.runtime.device import Device, absent_card, choose_device, environment
from convswap.runtime.library import OpLibraries
from convswap.runtime.tuning import read_table
from convswap.timing.floor import bound_by, floor_ms


@dataclass(frozen=True)
class ConvPlan:
    """The plan of one Conv, and the reasons for it.

    `fused` has the ops that are fused with the Conv, in order. `problem` is a `Problem.text`, and
    `explanation` the result of `_native.explain` for the problem. `floor_ms` is the lower bound of the time
    in milliseconds, and `bound` the resource that sets it ("memory" or "arithmetic"). Both are None if the
    device's bandwidth and rate are not known.
    """

    node: str
    fused: tuple[str, ...]
    problem: str
    explanation: _native.Explanation
    floor_ms: float | None
    bound: str | None

    @property
    def title(self) -> str:
        """The Conv and the ops fused with it, for a reader: "conv1 + Tanh + MaxPool"."""
        return " + ".join([self.node, *self.fused])

    @property
    def intensity(self) -> float:
        """The arithmetic intensity: operations per byte that must move."""
        return self.explanation["operations"] / max(self.explanation["bytes"], 1)

    def to_json(self) -> dict[str, Any]:
        """Return the plan with the keys of `convswap explain --json`."""
        return {
            "node": self.node,
            "fused": list(self.fused),
            "problem": self.problem,
            **self.explanation,
            "intensity": self.intensity,
            "floor_ms": self.floor_ms,
            "bound": self.bound,
        }


@dataclass(frozen=True, kw_only=True)
class ModelPlan(PlannedModel):
    """The plans of a model's Convs. `estimates` says which measurements a card's estimates rest on."""

    convs: tuple[ConvPlan, ...]
    estimates: str | None

    def to_json(self) -> dict[str, Any]:
        """Return the object that `convswap explain --json` writes."""
        return {
            **self.facts(),
            "estimates": self.estimates,
            "layers": [conv.to_json() for conv in self.convs],
        }


def explain(
    model: UserModel,
    *,
    batch: int | None = None,
    device: str | None = None,
    precision: str = DEFAULT_PRECISION,
    algorithm: str = AUTO,
    fuse: bool = False,
    input_shape: InputShape | None = None,
    inputs: UserInputs | None = None,
    op_libraries: OpLibraries = (),
    compute_capability: int | float | str | None = None,
) -> ModelPlan:
    """Return the plan of every Conv of `model` that would be swapped, without running any of them.

    Args:
        model: a network's name, the path of an ONNX file, or a model that holds its weights itself.
        batch: how many samples a run takes; by default as for `compare`.
        device: "cuda" or "cpu"; by default the GPU if there is one, with onnxruntime-gpu and CUDA kernels.
        precision: "tf32" or "ieee".
        algorithm: the name of an algorithm of the catalog, "auto" or "tuned".
        fuse: whether to fuse Convs with the nodes behind them; see `convswap.swap`.
        input_shape: the shape of one sample if the model leaves it open, as for `compare`.
        inputs: the values of the model's inputs, as for `compare`; the plan is for their shapes.
        op_libraries: files with custom ops of others that the model needs.
        compute_capability: plan for a typical card of this compute capability (90 or "9.0") instead of a
            device of this machine; launch shapes and floors are not known then.

    Raises:
        ConvswapError: an argument is not known or out of range, the model cannot be read or swapped, the
            device cannot be used, or an algorithm asked for by name cannot compute one of the Convs.
    """
    capability = None if compute_capability is None else as_capability(compute_capability)
    planned_for, run_on = _devices(device, capability)
    options = PlanOptions(batch, precision, algorithm, fuse, input_shape, inputs, op_libraries)
    problems = conv_problems(model, options, planned_for, run_on=run_on)
    convs = tuple(_plan(conv, planned_for, capability or 0) for conv in problems.convs)
    is_tuned = any(conv.layer.setting("algorithm", AUTO) == TUNED for conv in problems.convs)
    return ModelPlan(
        model=problems.title,
        device=planned_for,
        environment=environment(run_on) if capability is None else {},
        batch=problems.batch,
        precision=precision,
        algorithm=algorithm,
        convs=convs,
        estimates=_native.cost_table(compute_capability=capability or 0)[0] if planned_for.card else None,
        left=problems.left,
        fused=problems.fused,
        not_fused=problems.not_fused,
        notes=(*problems.notes, *_notes(convs, planned_for, capability), *_damage(is_tuned)),
    )


def print_plan(plan: ModelPlan, console: Console) -> None:
    """Print the bytes and operations of each Conv, then its plan and why no other algorithm was chosen.

    Convs with the same problem share a row. A console that is not a terminal should be 120 columns wide; long
    names are wrapped, never cut.
    """
    groups = _groups(plan.convs)
    console.print(
        Text(
            f"{plan.model}: the plan of every Conv, batch {plan.batch:,}\n"
            f"{versions_line(dict(plan.environment), plan.device.title)}\n"
            + (f"estimates {plan.estimates}\n" if plan.estimates else "")
        )
    )
    _print_costs(groups, console)
    _print_reasons(groups, console)
    for left in plan.left:
        console.print(Text(f"Left as it was: {left.node}: {left.reason}."))
    for line in fusion_remarks(plan.fused, plan.not_fused):
        console.print(Text(f"{line}."))
    print_notes(plan.notes, console)


def _devices(device: str | None, compute_capability: int | None) -> tuple[Device, Device]:
    """Return the device to plan for, and the device that runs the model if shapes need a run."""
    if compute_capability is None:
        chosen = choose_device(device)
        return chosen, chosen
    if device == "cpu":
        raise ConvswapError(
            "a compute capability was given with device cpu; it is one of cards: leave one out"
        )
    return absent_card(compute_capability), choose_device("cpu")


def _plan(conv: PlannedConv, device: Device, compute_capability: int) -> ConvPlan:
    layer, problem = conv.layer, conv.problem
    with naming_conv(layer.name):
        explanation = _native.explain(
            problem, device.name, compute_capability=compute_capability, **layer.planner_arguments
        )
    return ConvPlan(
        node=layer.name,
        fused=layer.fused,
        problem=problem.text,
        explanation=explanation,
        floor_ms=floor_ms(problem, device.card, layer.arithmetic),
        bound=bound_by(problem, device.card, layer.arithmetic),
    )


def _notes(convs: Sequence[ConvPlan], device: Device, compute_capability: int | None) -> Iterable[str]:
    if device.name == "cpu" and device.reason != "asked for":
        yield f"planned for the CPU: {device.reason}"
    if compute_capability is not None:
        yield "the launch shapes are known only on the card itself"
    if convs and all(conv.floor_ms is None for conv in convs):
        yield f"no floor: the memory bandwidth and peak rates of {device.title} are not known"


def _damage(is_tuned: bool) -> Iterable[str]:
    if is_tuned and (damage := read_table()[1]):
        yield f"the tuning table is damaged, and what is damaged is ignored: {damage}"


def _groups(convs: Sequence[ConvPlan]) -> list[list[ConvPlan]]:
    """Return groups of plans with the same problem and the same choice, in order."""
    groups: dict[tuple[str, str, str], list[ConvPlan]] = {}
    for conv in convs:
        key = conv.problem, conv.explanation["algorithm"], conv.explanation["decided_by"]
        groups.setdefault(key, []).append(conv)
    return list(groups.values())


def _print_costs(groups: Sequence[Sequence[ConvPlan]], console: Console) -> None:
    table = plain_table(
        "Bytes and operations of each Conv",
        *("node", "algorithm", "decided by", ">MB", ">GFLOP", ">FLOP per byte", ">floor ms", ">bound by"),
    )
    for conv, *same in groups:
        explanation = conv.explanation
        measured = explanation["milliseconds"]
        table.add_row(
            Text(_and_more(conv.title, len(same))),
            explanation["algorithm"],
            explanation["decided_by"] + ("" if measured is None else f", {milliseconds(measured)} ms"),
            three_digits(explanation["bytes"] / 1e6),
            three_digits(explanation["operations"] / 1e9),
            three_digits(conv.intensity),
            milliseconds(conv.floor_ms),
            conv.bound or "-",
        )
    console.print(table)


def _print_reasons(groups: Sequence[Sequence[ConvPlan]], console: Console) -> None:
    table = plain_table("Plan of each Conv, and why no other", "node", "algorithm", "why, or why not")
    for conv, *same in groups:
        explanation = conv.explanation
        table.add_row(Text(_and_more(conv.title, len(same))), "", Text(conv.problem))
        plan = "" if explanation["plan"] is None else f"; {explanation['plan']}"
        table.add_row("", explanation["algorithm"], Text(f"chosen: {explanation['why']}{plan}"))
        for other in explanation["others"]:
            table.add_row("", other["algorithm"], Text(f"not chosen: {other['why_not']}"))
        table.add_section()
    console.print(table)


def _and_more(node: str, count: int) -> str:
    return node if count == 0 else f"{node} and {count} more of the same"
