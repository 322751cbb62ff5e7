"""The shapes of samples that a model leaves open: as a user gives them, and what readers are told."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from convswap.errors import LARGEST_COUNT, ConvswapError, unknown_name
from convswap.inputs.feeds import Input, batch_symbols, input_shapes

# Of the model's only input, or of inputs by name; without the batch.
InputShape = Sequence[int] | Mapping[str, Sequence[int]]


def with_sample_shapes(inputs: Sequence[Input], given: InputShape | None) -> tuple[Input, ...]:
    """Return `inputs` with samples of the shapes `given`; so are symbols of the same name in the others.

    A shape is that of one sample, without the leading dimension.

    Raises:
        ConvswapError: there is no such input, several where none is named, or the model fixes another shape.
    """
    shapes = _by_name(inputs, given)
    found: dict[str, set[int]] = {}
    for one in inputs:
        if one.name not in shapes:
            continue
        _check(one, shapes[one.name])
        for symbol, extent in zip(one.symbols[1:], shapes[one.name], strict=one.has_rank):
            found.setdefault(symbol, set()).add(extent)
    # Exporters also write "?" for whatever they do not know, which then has several meanings.
    extents = {symbol: min(several) for symbol, several in found.items() if len(several) == 1}
    for symbol in ("", *batch_symbols(inputs)):
        extents.pop(symbol, None)
    return tuple(_filled(one, shapes.get(one.name), extents) for one in inputs)


def shape_notes(declared: Sequence[Input], fed: Sequence[Input], batch: int) -> list[str]:
    """Return what a reader has to know of what `fed` made up of `declared`, or was given for it.

    A sentence for each input whose samples `declared` leaves open, of what they are; and one that names the
    whole-number inputs that nobody gave, since zeros and ones are no sizes.
    """
    shapes = input_shapes(fed, batch)
    notes = []
    for one, own in zip(declared, fed, strict=True):
        if not _is_open(one):
            continue
        if own.is_given:
            whole = "x".join(map(str, shapes[one.name])) or "a single number"
            notes.append(f"the model leaves the shape of input {one} open: what was given is {whole}")
            continue
        sample = "x".join(map(str, shapes[one.name][1:])) or "single numbers"
        how = "--input-shape gives another" if _is_open(own) else "as asked for"
        notes.append(f"the model leaves the shape of input {one} open: its samples are {sample}, {how}")
    return notes + _made_up_numbers(declared, fed)


def _made_up_numbers(declared: Sequence[Input], fed: Sequence[Input]) -> list[str]:
    made_up = [
        str(one) for one, own in zip(declared, fed, strict=True) if one.is_whole_number and not own.is_given
    ]
    if not made_up:
        return []
    named = ", ".join(made_up)
    if len(made_up) == 1:
        return [f"whole-number input {named} is fed zeros and ones; --inputs gives it real values"]
    return [f"whole-number inputs {named} are fed zeros and ones; --inputs gives them real values"]


@contextmanager
def telling_shapes(declared: Sequence[Input], fed: Sequence[Input], batch: int) -> Iterator[None]:
    """End what is refused with the shapes and values that were made up, which may be why."""
    try:
        yield
    except ConvswapError as error:
        notes = shape_notes(declared, fed, batch)
        if not notes:
            raise
        raise ConvswapError("; ".join([str(error), *notes])) from error


def _is_open(one: Input) -> bool:
    return not one.has_rank or None in one.shape[1:]


def _by_name(inputs: Sequence[Input], given: InputShape | None) -> dict[str, tuple[int, ...]]:
    if given is None:
        return {}
    names = [one.name for one in inputs]
    if not names:
        raise ConvswapError(f"the shape {given} was given, but the model has no inputs; leave it out")
    if not isinstance(given, Mapping):
        candidates = names if len(names) == 1 else [one.name for one in inputs if _is_open(one)]
        if len(candidates) != 1:
            shown = _shown(_whole_numbers(given))
            raise ConvswapError(
                f"the shape {shown} was given without its input's name, and the inputs are "
                f"{', '.join(names)}; name the one that is meant, as in {names[0]}={shown}"
            )
        given = {candidates[0]: given}
    for name in given:
        if name not in names:
            raise unknown_name("input", str(name), names)
    return {name: _whole_numbers(shape) for name, shape in given.items()}


def _whole_numbers(shape: Sequence[int]) -> tuple[int, ...]:
    try:
        return tuple(map(operator.index, shape))
    except TypeError:
        raise ConvswapError(
            f"an input's shape was given as {shape!r}; expected whole numbers, as in (3, 224, 224)"
        ) from None


def _shown(shape: Sequence[object]) -> str:
    return ",".join(map(str, shape))


def _check(one: Input, shape: tuple[int, ...]) -> None:
    if any(not 1 <= extent <= LARGEST_COUNT for extent in shape):
        raise ConvswapError(
            f"input {one} was given samples of shape {_shown(shape)}; extents are from 1 to {LARGEST_COUNT}"
        )
    if not one.has_rank:
        return
    own = one.shape[1:]
    if len(own) != len(shape) or any(size not in (None, new) for size, new in zip(own, shape, strict=True)):
        symbols = [symbol or "?" for symbol in one.symbols[1:]]
        takes = [symbol if size is None else size for size, symbol in zip(own, symbols, strict=True)]
        raise ConvswapError(
            f"input {one} takes samples of shape {_shown(takes) or 'none'}, without the batch, but "
            f"{_shown(shape)} was given"
        )


def _filled(one: Input, own: tuple[int, ...] | None, extents: Mapping[str, int]) -> Input:
    if own is None:
        rest = zip(one.shape[1:], one.symbols[1:], strict=True)
        own_or_open = (extents.get(symbol) if size is None else size for size, symbol in rest)
        return replace(one, shape=(*one.shape[:1], *own_or_open))
    if not one.has_rank:
        return replace(one, shape=(None, *own), symbols=("",) * (len(own) + 1), has_rank=True)
    return replace(one, shape=(*one.shape[:1], *own))
