"""Compile what a model needs, for this machine's card or others, before it runs."""

from __future__ import annotations

import concurrent.futures
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from convswap import _native
from convswap.errors import ConvswapError, batch_sizes
from convswap.graph.algorithms import AUTO
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

# Of a model whose batch is open.
BATCHES = (1, 8, 64, 512)


@dataclass(frozen=True)
class Warmed:
    """What `warm` compiled: kernels by their names, for cards of each compute capability (90 for 9.0).

    `title` is the model's; `pack` the file that they were written to, None where they are in the store alone.
    `not_kept` tells why the store does not keep them, "" where it does.
    """

    title: str
    batches: tuple[int, ...]
    kernels: tuple[tuple[str, int], ...]
    bytes: int
    pack: str | None
    not_kept: str


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
    """Compile the kernels that `model` needs, several at once, and keep them, or write them to `pack` too.

    Args:
        model: a network's name, the path of an ONNX file, or a model that holds its weights itself.
        batches: how many samples runs will take; by default what the model is fixed to, as many as are in
            `inputs`, or `BATCHES`. A kernel serves many: only another choice needs another.
        compute_capabilities: of the cards, such as 80 and "9.0", which need not be here; by default of this
            machine's.
        precision, algorithm, fuse, input_shape, inputs, op_libraries: as for `explain`.
        pack: the file to write, for `convswap.pack` of a session, on machines without a compiler too.
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
    asked = _usual_batches(model, inputs) if batches is None else batch_sizes(batches)
    wanted: dict[tuple[str, int], None] = {}
    planned: dict[int, None] = {}
    title = ""
    for card in cards:
        capability = _capability(card)
        for batch in asked:
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
    not_kept = f"the kernel store is not used: {unused}" if unused else _native.take_kernel_store_warning()
    if not_kept:
        note(not_kept)
    if pack is not None:
        _write(writer, pack)
    return Warmed(
        title=title,
        batches=tuple(planned),
        kernels=tuple(wanted),
        bytes=size,
        pack=None if pack is None else os.fspath(pack),
        not_kept=not_kept,
    )


def _usual_batches(model: UserModel, inputs: UserInputs | None) -> Sequence[int | None]:
    """Return the batches to plan where none was asked for; None for that of the model or of `inputs`."""
    if inputs is not None or fixed_batch(declared_inputs(open_model(model)[1])) is not None:
        return (None,)
    return BATCHES


def print_warmed(warmed: Warmed, console: Console) -> None:
    """Print what was compiled, and where it is."""
    capabilities = sorted({capability for _, capability in warmed.kernels})
    cards = ", ".join(f"{capability / 10:.1f}" for capability in capabilities)
    where = f"kept in {_native.kernel_store()['folder']}" if not warmed.not_kept else "not kept"
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
    """Delete all kernels that are kept, and return how many they were."""
    return _native.clear_kernel_store()


def _cards(asked: int | str | Sequence[int | str] | None) -> list[Device]:
    if asked is not None:
        named = [asked] if isinstance(asked, (int, float, str)) else asked
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
            # This machine's card is planned for as a run would: a typical one may have more multiprocessors.
            found = _native.kernels_of(
                conv.problem,
                "cuda",
                compute_capability=0 if is_here else capability,
                **conv.layer.requested,
            )
        names += [(name, capability) for name in found]
    return names


def _compile(writer: _native.PackWriter, wanted: Sequence[tuple[str, int]], report: Progress) -> int:
    """Compile on all cores, and return the bytes."""
    total = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        under_way = {pool.submit(writer.add, name, capability): name for name, capability in wanted}
        for number, done in enumerate(concurrent.futures.as_completed(under_way), start=1):
            try:
                total += done.result()
            except RuntimeError as error:
                pool.shutdown(wait=False, cancel_futures=True)
                raise ConvswapError(" ".join(str(error).split())) from error
            report(f"compiled {number} of {len(wanted)} kernels: {under_way[done]}")
    return total


def _write(writer: _native.PackWriter, pack: str | os.PathLike[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="convswap-") as folder:
        part = Path(folder) / "kernels.pack"
        try:
            writer.write(os.fspath(part))
        except RuntimeError as error:
            raise ConvswapError(f"cannot write '{pack}': {error}") from error
        # The writer replaces files, and would replace a device.
        write_bytes(pack, part.read_bytes())
