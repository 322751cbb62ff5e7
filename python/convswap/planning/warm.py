"""Compile the kernels that a model needs, for this machine's card or others, before the model runs."""

from __future__ import annotations

import concurrent.futures
import os
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from convswap import _native
from convswap.errors import ConvswapError, batch_sizes
from convswap.graph.algorithms import AUTO
from convswap.graph.domain import LAYER_NORM_OP, MUL_OP, POOL_OP
from convswap.graph.swap import DEFAULT_PRECISION
from convswap.inputs.feeds import declared_inputs, fixed_batch
from convswap.inputs.model_with_data import UserModel, open_model
from convswap.inputs.sample_shapes import InputShape
from convswap.inputs.user_inputs import UserInputs
from convswap.output.files import check_writable, write_bytes
from convswap.planning.problems import ConvProblems, PlanOptions, conv_problems, naming_conv
from convswap.progress import Progress, note, silent
from convswap.runtime.cards import as_capability
from convswap.runtime.device import Device, absent_card, choose_device
from convswap.runtime.library import OpLibraries

# The batches to plan for a model whose batch is open.
BATCHES = (1, 8, 64, 512)
# The ops that are no convolutions, and the element types, in the names of kernels.
_KERNELS_OF_OPS = {POOL_OP: "pool::kernel", LAYER_NORM_OP: "layer_norm::kernel", MUL_OP: "mul::kernel"}
_KERNEL_ELEMENTS = {
    "float32": "float",
    "float64": "double",
    "float16": "Float16",
    "bfloat16": "BFloat16",
    "int8": "Int8",
    "uint8": "UInt8",
}


@dataclass(frozen=True)
class Warmed:
    """The kernels that `warm` compiled, by name and compute capability (90 for 9.0).

    `title` is the model's. `pack` is the file that they were written to, None if they are in the kernel store
    only. `not_stored` is the reason if the store does not hold them, otherwise "".
    """

    title: str
    batches: tuple[int, ...]
    kernels: tuple[tuple[str, int], ...]
    bytes: int
    pack: str | None
    not_stored: str


def warm(
    model: UserModel,
    *,
    batches: int | Sequence[int] | None = None,
    compute_capabilities: int | str | Sequence[int | str] | None = None,
    precision: str = DEFAULT_PRECISION,
    algorithm: str = AUTO,
    fuse: bool = False,
    input_shape: InputShape | None = None,
    inputs: UserInputs | None = None,
    op_libraries: OpLibraries = (),
    pack: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Warmed:
    """Compile the kernels that `model` needs in parallel; put them into the kernel store, and into `pack`.

    Args:
        model: a network's name, the path of an ONNX file, or a model that holds its weights itself.
        batches: how many samples runs will take; by default the model's fixed batch, the number of samples in
            `inputs`, or `BATCHES`. A kernel serves many batches: a batch adds a kernel only if the planner
            chooses another for it.
        compute_capabilities: of the cards, such as 80 and "9.0", which this machine need not have; by default
            of this machine's card.
        precision, algorithm, fuse, input_shape, inputs, op_libraries: as for `explain`.
        pack: the file to write, for the session entry `convswap.pack`, also on machines without a compiler.
        progress: called with a few words for each kernel.

    Raises:
        ConvswapError: an argument is not known or out of range, the model cannot be read or swapped, no Conv
            of it is swapped, there is no card and none was named, or there is no compiler.
    """
    report = progress or silent
    check_writable(pack)
    cards = _cards(compute_capabilities)
    compiler = _native.kernel_compiler()
    if compiler["why_not"]:
        raise ConvswapError(compiler["why_not"])
    requested = _default_batches(model, inputs) if batches is None else batch_sizes(batches)
    wanted: dict[tuple[str, int], None] = {}
    planned: dict[int, None] = {}
    title = ""
    for card in cards:
        capability = _capability(card)
        for batch in requested:
            report(f"planning batch {batch or 'as given'} for compute capability {capability / 10:.1f}")
            options = PlanOptions(batch, precision, algorithm, fuse, input_shape, inputs, op_libraries)
            problems = conv_problems(model, options, card, run_on=choose_device("cpu"))
            title = problems.title
            planned[problems.batch] = None
            wanted |= dict.fromkeys(_kernels(problems, card, is_here=compute_capabilities is None))
    if not wanted:
        raise ConvswapError(f"{title}: no Conv of it is swapped, so that no kernel is needed")
    writer = _native.PackWriter()
    size = _compile(writer, list(wanted), report)
    unused = _native.kernel_store()["unused"]
    not_stored = f"the kernel store is not used: {unused}" if unused else _native.take_kernel_store_warning()
    if not_stored:
        note(not_stored)
    if pack is not None:
        _write_pack(writer, pack)
    return Warmed(
        title=title,
        batches=tuple(planned),
        kernels=tuple(wanted),
        bytes=size,
        pack=None if pack is None else os.fspath(pack),
        not_stored=not_stored,
    )


def _default_batches(model: UserModel, inputs: UserInputs | None) -> Sequence[int | None]:
    """Return the batches to plan if none was asked for; None is the batch of the model or of `inputs`."""
    if inputs is not None or fixed_batch(declared_inputs(open_model(model)[1])) is not None:
        return (None,)
    return BATCHES


def print_warmed(warmed: Warmed, console: Console) -> None:
    """Print which kernels were compiled, and where they are."""
    capabilities = sorted({capability for _, capability in warmed.kernels})
    cards = ", ".join(f"{capability / 10:.1f}" for capability in capabilities)
    where = f"stored in {_native.kernel_store()['folder']}" if not warmed.not_stored else "not stored"
    batches = ", ".join(f"{batch:,}" for batch in warmed.batches)
    console.print(
        Text(
            f"{warmed.title}: {len(warmed.kernels)} kernels for compute capability {cards}, batches "
            f"{batches}, {warmed.bytes / 1e6:.1f} MB, {where}."
        )
    )
    if warmed.pack is not None:
        console.print(
            Text(f"Written to {warmed.pack}: name it in the entry convswap.pack of session options.")
        )


def clear() -> int:
    """Delete all kernels in the kernel store, and return their number."""
    return _native.clear_kernel_store()


def _cards(requested: int | str | Sequence[int | str] | None) -> list[Device]:
    if requested is not None:
        named = [requested] if isinstance(requested, (int, float, str)) else requested
        if not named:
            raise ConvswapError("no compute capability was given; give one such as 9.0, or leave them out")
        return [absent_card(capability) for capability in dict.fromkeys(map(as_capability, named))]
    device = choose_device()
    if device.card is None:
        raise ConvswapError(
            f"there is no card to compile for: {device.reason}; name cards, as in --compute-capability 9.0"
        )
    return [device]


def _capability(card: Device) -> int:
    return int((card.card or {})["compute_capability"])


def _kernels(problems: ConvProblems, card: Device, *, is_here: bool) -> list[tuple[str, int]]:
    capability = _capability(card)
    names: list[tuple[str, int]] = []
    for conv in problems.convs:
        with naming_conv(conv.layer.name):
            # Capability 0 plans for this machine's card, which may have fewer multiprocessors than a typical
            # card of its compute capability.
            kernels = _native.kernels_of(
                conv.problem,
                "cuda",
                compute_capability=0 if is_here else capability,
                **conv.layer.planner_arguments,
            )
        names += [(name, capability) for name in kernels]
    names += [(name, capability) for name in op_kernels(problems.op_types)]
    return names


def op_kernels(op_types: Collection[tuple[str, str]]) -> list[str]:
    """Return all kernels of ops with an element type each: ("LayoutPool", "float32")."""
    prefixes = tuple(f"{_KERNELS_OF_OPS[op]}<{_KERNEL_ELEMENTS[dtype]}, " for op, dtype in op_types)
    instances = (name for family in _native.kernel_families() for name in family["instances"])
    return [name for name in instances if name.startswith(prefixes)]


def _compile(writer: _native.PackWriter, wanted: Sequence[tuple[str, int]], report: Progress) -> int:
    """Compile the kernels on all cores, and return their bytes."""
    total = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        pending = {pool.submit(writer.add, name, capability): name for name, capability in wanted}
        for number, done in enumerate(concurrent.futures.as_completed(pending), start=1):
            try:
                total += done.result()
            except RuntimeError as error:
                pool.shutdown(wait=False, cancel_futures=True)
                raise ConvswapError(" ".join(str(error).split())) from error
            report(f"compiled {number} of {len(wanted)} kernels: {pending[done]}")
    return total


def _write_pack(writer: _native.PackWriter, pack: str | os.PathLike[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="convswap-") as folder:
        part = Path(folder) / "kernels.pack"
        try:
            writer.write(os.fspath(part))
        except RuntimeError as error:
            raise ConvswapError(f"cannot write '{pack}': {error}") from error
        # The writer would replace a device such as /dev/null with a file; `write_bytes` does not.
        write_bytes(pack, part.read_bytes())
