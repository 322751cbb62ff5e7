"""Reads the graph in an MXNet `-symbol.json` file: nodes, each after its inputs, and the head, the result.

MXNet writes every attribute as text. Its versions call the attributes `attrs`, `attr` or `param`.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from convswap.errors import ConvswapError
from convswap.export.byte_reader import read_checkpoint_file

# The course's networks take a few kilobytes, the deepest published networks a few hundred.
LARGEST_FILE = 16 << 20
MOST_NODES = 5_000
LARGEST_NUMBER = 2**31 - 1
# Enough for 32 numbers, MXNet's limit for dimensions. Attributes are parsed again for every image size that
# is tried, so a longer text would take long.
LONGEST_NUMBERS = 1_000
_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,10}")
_TRUE = {"True", "true", "1"}
_FALSE = {"False", "false", "0"}


@dataclass(frozen=True)
class SymbolNode:
    """One node: `operator` is "null" for an input; `inputs` are indices in the list of nodes."""

    path: str
    operator: str
    name: str
    attributes: dict[str, str]
    inputs: tuple[int, ...]

    def wrong(self, found: str, expected: str) -> ConvswapError:
        """Return the error for an unsupported property of this node."""
        return ConvswapError(
            f"node {self.name!r} ({self.operator}) of {self.path!r} has {found}; expected {expected}"
        )

    def choice(self, attribute: str, known: Iterable[str], default: str | None = None) -> str:
        """Return the value of `attribute`, one of `known`."""
        value = self.attributes.get(attribute, default)
        if value is None or value not in known:
            found = f"no {attribute}" if value is None else f"{attribute} {value!r:.60}"
            raise self.wrong(found, f"one of {', '.join(known)}")
        return value

    def flag(self, attribute: str, default: bool = False) -> bool:
        """Return the value of `attribute`, True or False."""
        value = self.attributes.get(attribute, str(default))
        if value not in _TRUE | _FALSE:
            raise self.wrong(f"{attribute} {value!r:.60}", "True or False")
        return value in _TRUE

    def integers(
        self, attribute: str, count: int | None, default: tuple[int, ...] | None = None, minimum: int = 1
    ) -> tuple[int, ...]:
        """Return the value of `attribute`: `count` integers (any number if None), each at least `minimum`."""
        value = self.attributes.get(attribute)
        if value is None:
            if default is None:
                raise self.wrong(f"no {attribute}", f"{attribute} as whole numbers")
            return default
        if len(value) > LONGEST_NUMBERS:
            raise self.wrong(f"{len(value)} characters as {attribute}", f"at most {LONGEST_NUMBERS}")
        parts = [part.strip() for part in value.strip().strip("()[]").rstrip(", ").split(",")]
        if parts == [""] and default is not None:
            return default
        numbers = [int(part) for part in parts if _WHOLE_NUMBER.fullmatch(part)]
        if len(numbers) != len(parts) or (count is not None and len(numbers) != count):
            amount = "whole numbers" if count is None else f"{count} whole number{'s' * (count > 1)}"
            raise self.wrong(f"{attribute} {value!r:.60}", amount)
        if min(numbers) < minimum or max(numbers) > LARGEST_NUMBER:
            raise self.wrong(f"{attribute} {value!r:.60}", f"numbers from {minimum} to {LARGEST_NUMBER}")
        return tuple(numbers)

    def integer(self, attribute: str, default: int | None = None) -> int:
        """Return the value of `attribute`, one positive integer."""
        return self.integers(attribute, 1, None if default is None else (default,))[0]


@dataclass(frozen=True)
class Symbol:
    """The nodes, each after its inputs, and the index of the node that computes the result."""

    path: str
    nodes: tuple[SymbolNode, ...] = field(repr=False)
    head: int


def read_symbol(path: str | os.PathLike[str]) -> Symbol:
    """Return the graph in the file at `path`.

    Raises ConvswapError if the file cannot be read, is not JSON or not a symbol, an input of a node is not
    before the node (which excludes cycles), or there is not exactly one head.
    """
    content = read_checkpoint_file(path, "an MXNet -symbol.json file", LARGEST_FILE)
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise ConvswapError(
            f"{str(path)!r} is not an MXNet symbol: it is not valid JSON ({reason})"
        ) from error
    nodes = document.get("nodes") if isinstance(document, dict) else None
    if not isinstance(nodes, list) or not nodes:
        raise ConvswapError(
            f"{str(path)!r} is not an MXNet symbol: expected a JSON object with a list of nodes"
        )
    if len(nodes) > MOST_NODES:
        raise ConvswapError(f"{str(path)!r} has {len(nodes)} nodes; expected at most {MOST_NODES}")
    read = tuple(_read_node(str(path), place, node) for place, node in enumerate(nodes))
    names = [node.name for node in read]
    if len(set(names)) < len(names):
        twice = Counter(names).most_common(1)[0][0]
        raise ConvswapError(f"{str(path)!r} has two nodes named {twice!r}; expected one of each name")
    heads = document.get("heads")
    if not isinstance(heads, list) or len(heads) != 1:
        found = len(heads) if isinstance(heads, list) else "no"
        raise ConvswapError(f"{str(path)!r} has {found} heads; expected one, the network's result")
    return Symbol(str(path), read, _read_reference(str(path), heads[0], len(read), "the head"))


def _read_node(path: str, place: int, node: Any) -> SymbolNode:
    description = f"node {place}"
    if not isinstance(node, dict) or not isinstance(node.get("inputs"), list):
        raise ConvswapError(
            f"{description} of {path!r} is not a symbol's: expected an object with op, name and inputs"
        )
    operator, name = (_text(node.get(key), key, description, path) for key in ("op", "name"))
    attributes: dict[str, str] = {}
    for key in ("attr", "attrs", "param"):
        values = node.get(key, {})
        if not isinstance(values, dict):
            raise ConvswapError(
                f"{description} of {path!r} has {key} {values!r:.60}; expected names and values"
            )
        attributes |= {attribute: str(value) for attribute, value in values.items()}
    inputs = tuple(
        _read_reference(path, reference, place, f"an input of node {place} ({name!r})")
        for reference in node["inputs"]
    )
    return SymbolNode(path, operator, name, attributes, inputs)


def _text(value: Any, key: str, description: str, path: str) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ConvswapError(
            f"{description} of {path!r} has {value!r:.60} as its {key}; expected printable text"
        )
    return value


def _read_reference(path: str, reference: Any, before: int, description: str) -> int:
    """Return the node of a reference [node, output, version]; older files have no version."""
    is_list_of_ints = isinstance(reference, list) and all(type(number) is int for number in reference)
    if not is_list_of_ints or len(reference) not in (2, 3):
        raise ConvswapError(
            f"{description} of {path!r} is {reference!r:.60}; expected [node, output, version]"
        )
    node, output = reference[:2]
    if not 0 <= node < before:
        raise ConvswapError(
            f"{description} of {path!r} is node {node}; expected one from 0 to {before - 1}, before it"
        )
    if output != 0:
        raise ConvswapError(
            f"{description} of {path!r} is output {output} of node {node}; expected output 0, the only one"
        )
    return node
