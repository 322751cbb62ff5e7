"""What a run gave, as arrays with names: sequences, optionals and maps taken apart.

A sequence gives an array for each element, `y[0]`, `y[1]`, ...; a map one of its keys and one of its values,
`y.keys` and `y.values`, in the order of the keys. A sequence of maps, which a classifier gives for a batch,
is two arrays as well: the keys of all maps, and the values. Numbers of types that NumPy has not itself are in
a wider one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from convswap.graph.element_types import widened

Arrays = dict[str, np.ndarray]


def named_arrays(names: Sequence[str], outputs: Sequence[object]) -> Arrays:
    """Return the arrays in `outputs`, called `names`; an absent optional is an array of one None."""
    return {
        name: values
        for output, held in zip(names, outputs, strict=True)
        for name, values in _arrays(output, held)
    }


def is_number(values: np.ndarray) -> bool:
    """Return whether `values` are truth values or numbers of a type that NumPy has itself."""
    return values.dtype.kind in "biuf"


def is_floating(values: np.ndarray) -> bool:
    """Return whether `values` are floating-point numbers of a type that NumPy has itself."""
    return values.dtype.kind == "f"


def _arrays(name: str, held: Any) -> Iterator[tuple[str, np.ndarray]]:
    if isinstance(held, Mapping):
        yield from _map_arrays(name, [held])
    elif isinstance(held, (list, tuple)):
        if held and all(isinstance(item, Mapping) for item in held):
            yield from _map_arrays(name, held)
            return
        for index, item in enumerate(held):
            yield from _arrays(f"{name}[{index}]", item)
    elif held is None or isinstance(held, (str, bytes)):
        yield name, np.array(held, dtype=object)
    elif isinstance(held, (np.ndarray, np.generic, bool, int, float)):
        array = np.asarray(held)
        # Of strings NumPy has types of fixed lengths, which differ where the strings do.
        yield name, array.astype(object) if array.dtype.kind in "SU" else widened(array)


def _map_arrays(name: str, maps: Sequence[Mapping[Any, Any]]) -> Iterator[tuple[str, np.ndarray]]:
    entries = [entry for one in maps for entry in sorted(one.items(), key=lambda entry: entry[0])]
    yield from _arrays(f"{name}.keys", np.array([key for key, _ in entries]))
    values = [value for _, value in entries]
    if all(np.ndim(value) == 0 for value in values):
        yield from _arrays(f"{name}.values", np.array(values))
    else:
        yield from _arrays(f"{name}.values", values)
