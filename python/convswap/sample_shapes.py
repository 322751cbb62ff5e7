"""The shapes of samples that a model leaves open: as a user gives them, and what is said where nobody did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from convswap.errors import ConvswapError, require_count, unknown_name
from convswap.feeds import Input, batch_symbols, input_shapes

# Of the model's only input, or of inputs by name; without the batch.
InputShape = Sequence[int] | Mapping[str, Sequence[int]]


def with_sample_shapes(inputs: Sequence[Input], given: InputShape | None) -> tuple[Input, ...]:
    """Return `inputs` with samples of the shapes `given`; so are symbols of the same name in the others.

    A shape is that of one sample, without the leading dimension.

    Raises:
        ConvswapError: there is no such input, several where none is named, or the model fixes another shape.
    """
    shapes = _by_name(inputs, given)
    extents: dict[str, int] = {}
    for one in inputs:
        if one.name not in shapes:
            continue
        shape = shapes[one.name]
        for extent in shape:
            require_count(f"an extent of input {one.name!r}", extent)
        if not _fits(one.shape[1:], shape):
            raise ConvswapError(
                f"input {one} was given samples of shape {list(shape)}, without the batch, which it cannot "
                "take; give numbers for what it leaves open and repeat the others"
            )
        for symbol, extent in zip(one.symbols[1:], shape, strict=True):
            if symbol and extents.setdefault(symbol, extent) != extent:
                raise ConvswapError(
                    f"input {one} was given {extent} for {symbol!r}, which is {extents[symbol]} elsewhere; "
                    "give it one number"
                )
    if meant := sorted(batch_symbols(inputs) & extents.keys()):
        raise ConvswapError(
            f"a shape was given for {meant[0]!r}, which is the batch too; give the batch and leave it out"
        )
    return tuple(_filled(one, shapes.get(one.name), extents) for one in inputs)


def open_shape_notes(inputs: Sequence[Input]) -> list[str]:
    """Return a sentence for each input whose samples have no shape but the one that we made up."""
    shapes = input_shapes(inputs, batch=1)
    return [
        f"the model leaves the shape of input {one} open: its samples were "
        f"{'x'.join(map(str, shapes[one.name][1:]))}; --input-shape gives another"
        for one in inputs
        if _is_open(one, inputs)
    ]


def _is_open(one: Input, inputs: Sequence[Input]) -> bool:
    known = batch_symbols(inputs)
    return any(
        extent is None and symbol not in known
        for extent, symbol in zip(one.shape[1:], one.symbols[1:], strict=True)
    )


def _by_name(inputs: Sequence[Input], given: InputShape | None) -> dict[str, tuple[int, ...]]:
    names = [one.name for one in inputs]
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        if len(names) != 1:
            raise ConvswapError(
                "a shape was given without its input's name, and the inputs are "
                f"{', '.join(names) or 'none'}: name the one that is meant"
            )
        return {names[0]: tuple(given)}
    for name in given:
        if name not in names:
            raise unknown_name("input", name, names)
    return {name: tuple(shape) for name, shape in given.items()}


def _fits(declared: Sequence[int | None], shape: Sequence[int]) -> bool:
    return len(declared) == len(shape) and all(
        size in (None, extent) for size, extent in zip(declared, shape, strict=True)
    )


def _filled(one: Input, own: tuple[int, ...] | None, extents: Mapping[str, int]) -> Input:
    if own is not None:
        return replace(one, shape=(*one.shape[:1], *own))
    rest = zip(one.shape[1:], one.symbols[1:], strict=True)
    shape = (extents.get(symbol) if size is None else size for size, symbol in rest)
    return replace(one, shape=(*one.shape[:1], *shape))
