"""Shapes of samples that a model leaves open: set by the user, and explained in notes."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from convswap.errors import LARGEST_COUNT, ConvswapError, unknown_name
from convswap.inputs.feeds import Input, batch_symbols, input_shapes

# The shape of a sample, without the batch dimension: of the model's only input, or of inputs by name.
InputShape = Sequence[int] | Mapping[str, Sequence[int]]


def with_sample_shapes(inputs: Sequence[Input], sample_shapes: InputShape | None) -> tuple[Input, ...]:
    """Return `inputs` with samples of the shapes `sample_shapes`.

    Symbolic dimensions of other inputs that have the same name get the same size. The shape of a sample does
    not have the leading dimension.

    Raises:
        ConvswapError: there is no such input, an unnamed shape fits several inputs, or the model fixes
            another shape.
    """
    shapes = _shapes_by_name(inputs, sample_shapes)
    extents_by_symbol: dict[str, set[int]] = {}
    for input_ in inputs:
        if input_.name not in shapes:
            continue
        _check_shape(input_, shapes[input_.name])
        for symbol, extent in zip(input_.symbols[1:], shapes[input_.name], strict=input_.has_rank):
            extents_by_symbol.setdefault(symbol, set()).add(extent)
    # A symbol with several sizes is skipped: exporters also write "?" as the name of every unknown dimension.
    extents = {
        symbol: min(candidates) for symbol, candidates in extents_by_symbol.items() if len(candidates) == 1
    }
    for symbol in ("", *batch_symbols(inputs)):
        extents.pop(symbol, None)
    return tuple(_with_shape(input_, shapes.get(input_.name), extents) for input_ in inputs)


def shape_notes(declared: Sequence[Input], run_inputs: Sequence[Input], batch: int) -> list[str]:
    """Return notes about the shapes and random values of `run_inputs` that `declared` leaves open.

    There is a sentence for each input whose sample shape is open in `declared`, and one that names the
    integer inputs with random values, since zeros and ones make no sense as sizes.
    """
    shapes = input_shapes(run_inputs, batch)
    notes = []
    for input_, run_input in zip(declared, run_inputs, strict=True):
        if not _is_open(input_):
            continue
        if run_input.is_from_user:
            shape_text = "x".join(map(str, shapes[input_.name])) or "a single number"
            notes.append(f"the model leaves the shape of input {input_} open: what was given is {shape_text}")
            continue
        sample = "x".join(map(str, shapes[input_.name][1:])) or "single numbers"
        origin = "--input-shape gives another" if _is_open(run_input) else "as asked for"
        notes.append(f"the model leaves the shape of input {input_} open: its samples are {sample}, {origin}")
    return notes + _random_integer_notes(declared, run_inputs)


def _random_integer_notes(declared: Sequence[Input], run_inputs: Sequence[Input]) -> list[str]:
    random_inputs = [
        str(input_)
        for input_, run_input in zip(declared, run_inputs, strict=True)
        if input_.is_integer and not run_input.is_from_user
    ]
    if not random_inputs:
        return []
    names = ", ".join(random_inputs)
    if len(random_inputs) == 1:
        return [f"integer input {names} gets zeros and ones; --inputs gives it real values"]
    return [f"integer inputs {names} get zeros and ones; --inputs gives them real values"]


@contextmanager
def shape_notes_on_error(
    declared: Sequence[Input], run_inputs: Sequence[Input], batch: int
) -> Iterator[None]:
    """Append the notes of `shape_notes` to a ConvswapError: assumed shapes and values may be its cause."""
    try:
        yield
    except ConvswapError as error:
        notes = shape_notes(declared, run_inputs, batch)
        if not notes:
            raise
        raise ConvswapError("; ".join([str(error), *notes])) from error


def _is_open(input_: Input) -> bool:
    return not input_.has_rank or None in input_.shape[1:]


def _shapes_by_name(inputs: Sequence[Input], sample_shapes: InputShape | None) -> dict[str, tuple[int, ...]]:
    if sample_shapes is None:
        return {}
    names = [input_.name for input_ in inputs]
    if not names:
        raise ConvswapError(f"the shape {sample_shapes} was given, but the model has no inputs; leave it out")
    if not isinstance(sample_shapes, Mapping):
        candidates = names if len(names) == 1 else [input_.name for input_ in inputs if _is_open(input_)]
        if len(candidates) != 1:
            formatted = _format_shape(_as_integers(sample_shapes))
            raise ConvswapError(
                f"the shape {formatted} was given without its input's name, and the inputs are "
                f"{', '.join(names)}; name the one that is meant, as in {names[0]}={formatted}"
            )
        sample_shapes = {candidates[0]: sample_shapes}
    for name in sample_shapes:
        if name not in names:
            raise unknown_name("input", str(name), names)
    return {name: _as_integers(shape) for name, shape in sample_shapes.items()}


def _as_integers(shape: Sequence[int]) -> tuple[int, ...]:
    try:
        return tuple(map(operator.index, shape))
    except TypeError:
        raise ConvswapError(
            f"an input's shape was given as {shape!r}; expected whole numbers, as in (3, 224, 224)"
        ) from None


def _format_shape(shape: Sequence[object]) -> str:
    return ",".join(map(str, shape))


def _check_shape(input_: Input, shape: tuple[int, ...]) -> None:
    if any(not 1 <= extent <= LARGEST_COUNT for extent in shape):
        raise ConvswapError(
            f"input {input_} was given samples of shape {_format_shape(shape)}; extents are from 1 to "
            f"{LARGEST_COUNT}"
        )
    if not input_.has_rank:
        return
    declared = input_.shape[1:]
    if len(declared) != len(shape) or any(
        size not in (None, new) for size, new in zip(declared, shape, strict=True)
    ):
        symbols = [symbol or "?" for symbol in input_.symbols[1:]]
        expected = [symbol if size is None else size for size, symbol in zip(declared, symbols, strict=True)]
        raise ConvswapError(
            f"input {input_} takes samples of shape {_format_shape(expected) or 'none'}, without the batch, "
            f"but {_format_shape(shape)} was given"
        )


def _with_shape(input_: Input, sample_shape: tuple[int, ...] | None, extents: Mapping[str, int]) -> Input:
    if sample_shape is None:
        open_axes = zip(input_.shape[1:], input_.symbols[1:], strict=True)
        extents_or_none = (extents.get(symbol) if size is None else size for size, symbol in open_axes)
        return replace(input_, shape=(*input_.shape[:1], *extents_or_none))
    if not input_.has_rank:
        return replace(
            input_, shape=(None, *sample_shape), symbols=("",) * (len(sample_shape) + 1), has_rank=True
        )
    return replace(input_, shape=(*input_.shape[:1], *sample_shape))
