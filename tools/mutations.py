"""Damage for tools/fuzz.py: to any bytes, and to the structures of file formats.

Every `damage_...` function of a format takes an intact file and a seeded random source. Its result may be
intact by chance. Most damage keeps checksums and lengths valid, so that files pass the first check.
"""

from __future__ import annotations

import contextlib
import copy
import gzip
import json
import pickletools
import re
import struct
from collections.abc import Callable, Iterator
from itertools import pairwise
from random import Random
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

POWERS = [2**bits for bits in (7, 8, 15, 16, 31, 32, 62, 63, 64)]
# 0x7F800000 and 0xFF800000 are the infinities of float32.
EXTREME_INTEGERS = [0, 1, -1, 2, 3, 32, 33, 1000, 0x7F800000, 0xFF800000]
EXTREME_INTEGERS += [sign * power + step for power in POWERS for sign in (1, -1) for step in (0, -1)]
EXTREME_TEXTS = ("", "\n", "\x1b[31m", "\u2028", "Conv", "convswap", "ai.onnx", "../x", "/", "x" * 70_000)
EXTREME_FLOATS = (0.0, -0.0, 1e-45, 1e39, -1e300, float("nan"), float("inf"))
BYTE_CHANGES = ("flip", "noise", "cut", "insert", "delete", "repeat", "move", "int", "int", "digits")
LIST_CHANGES = ("delete", "repeat", "swap", "copy", "insert", "replace", "replace", "replace")


def damage_bytes(content: bytes, random: Random) -> bytes:
    """Return `content` after one to four small changes that ignore its format."""
    damaged = bytearray(content)
    for _ in range(random.choice((1, 1, 2, 4))):
        _change_bytes(damaged, random)
    return bytes(damaged)


def _change_bytes(content: bytearray, random: Random) -> None:
    start = _random_index(content, random)
    block = content[start : start + random.choice((1, 2, 4, 8, 16, 64, 1024))]
    end = start + len(block)
    match random.choice(BYTE_CHANGES):
        case "flip" if content:
            for _ in range(random.choice((1, 1, 3, 16))):
                content[_random_index(content, random)] ^= 1 << random.randrange(8)
        case "noise":
            content[start:end] = random.randbytes(len(block))
        case "cut":
            del content[start:]
        case "insert":
            content[start:start] = random.randbytes(random.choice((1, 2, 4, 8, 100)))
        case "delete":
            del content[start:end]
        case "repeat":
            content[start:start] = block * random.choice((1, 1, 2, 100))
        case "move":
            del content[start:end]
            target = _random_index(content, random)
            content[target:target] = block
        case "int":
            width = random.choice((1, 2, 4, 8))
            start -= random.choice((0, start % width))
            number = random.choice(EXTREME_INTEGERS) % 2 ** (8 * width)
            content[start : start + width] = number.to_bytes(width, random.choice(("little", "big")))
        case "digits" if numbers := list(re.finditer(rb"-?[0-9]+", content[: 1 << 16])):
            digits = random.choice(numbers)
            content[digits.start() : digits.end()] = str(random.choice(EXTREME_INTEGERS)).encode()


def _random_index(content: bytearray, random: Random) -> int:
    """Return an index, mostly near the beginning or the end, where formats keep headers and tables."""
    last = max(0, len(content) - 1)
    near = min(last, 63)
    return random.choice((random.randint(0, near), last - random.randint(0, near), random.randint(0, last)))


def damage_list(items: list[Any], random: Random, replacement: Callable[[Any], Any]) -> None:
    """Delete, repeat, swap, copy or replace items in place.

    `replacement` returns the replacement of an item, or a new item for None.
    """
    index, other_index = (random.randrange(len(items)) if items else 0 for _ in range(2))
    match random.choice(LIST_CHANGES):
        case "delete" if items:
            del items[index]
        case "repeat" if items:
            items[index:index] = [items[index]] * random.choice((1, 1, 2, 40, 1000))
        case "swap" if items:
            items[index], items[other_index] = items[other_index], items[index]
        case "copy" if items:
            items[index] = items[other_index]
        case "replace" if items:
            items[index] = replacement(items[index])
        case _:
            items.insert(index, replacement(None))


# mini-dnn


def damage_counted_layers(content: bytes, random: Random) -> bytes:
    """Return a mini-dnn weights file with damaged, repeated or missing layers or header, or any damage."""
    if random.random() < 0.4:
        return damage_bytes(content, random)
    parts, offset = [content[:4]], 4
    while offset < len(content):
        end = offset + 4 + 4 * struct.unpack_from("<i", content, offset)[0]
        parts.append(content[offset:end])
        offset = end
    damage_list(parts, random, lambda part: damage_bytes(part or b"", random))
    return b"".join(parts)


# gzip

# A gzip file may have several members, read as one file: a few kilobytes become gigabytes.
ZERO_MEMBER = gzip.compress(bytes(16 << 20), mtime=0)


def damage_gzip(content: bytes, random: Random) -> bytes:
    """Return gzip with damaged bytes, with damaged content, or followed by gigabytes of zeros."""
    chance = random.random()
    if chance < 0.4:
        return damage_bytes(content, random)
    compressed = gzip.compress(damage_bytes(gzip.decompress(content), random), compresslevel=1, mtime=0)
    return compressed if chance < 0.95 else compressed + ZERO_MEMBER * 100


# pickle, in NumPy's .npy files

# Operations that name programs, ask for memory, or pop items that the stack lacks.
PICKLE_OPERATIONS = (
    b"cos\nsystem\n",
    b"cbuiltins\neval\n",
    b"cnumpy\nndarray\n",
    *(code + b"\xff\xff\xff\x7f" for code in (b"X", b"T", b"r", b"j", b"J")),
    b"J\xff\xff\xff\xff",
    b"\x8a\xff" + b"\x7f" * 255,
    b"F1e400\n",
    b"I1\n",
    b"(t",
    b"(" * 3_000 + b"t" * 3_000,
    b"h\x00\x86q\x00" * 1_000,
    *(bytes([code]) for code in b"(.0])}2NRabesu\x81\x85\x86\x87\x88\x93\x94"),
)


def damage_npy(content: bytes, random: Random) -> bytes:
    """Return a .npy file of a pickled array with damaged bytes, or damaged operations of its pickle."""
    if random.random() < 0.3:
        return damage_bytes(content, random)
    # Magic and version take 8 bytes, the length of the header 2.
    start = 10 + int.from_bytes(content[8:10], "little")
    pickle = content[start:]
    offsets = [offset for _, _, offset in pickletools.genops(pickle)] + [len(pickle)]
    operations = [pickle[offset:end] for offset, end in pairwise(offsets)]

    def replacement(operation: bytes | None) -> bytes:
        if operation is None or random.random() < 0.4:
            return random.choice(PICKLE_OPERATIONS)
        return damage_bytes(operation, random)

    for _ in range(random.choice((1, 1, 1, 2, 4))):
        damage_list(operations, random, replacement)
    return content[:start] + b"".join(operations)


# JSON


def damage_json(content: bytes, random: Random) -> bytes:
    """Return a JSON document with values swapped, deleted, repeated or of another type; or damaged bytes."""
    if random.random() < 0.15:
        return damage_bytes(content, random)
    document = json.loads(content)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        if items := list(_json_items(document)):
            _change_json(items, random)
    damaged = json.dumps(document)
    if random.random() < 0.1:
        # Lists nested near and beyond the recursion limit of Python's parsers.
        depth = random.choice((10, random.randint(900, 1000), 100_000))
        text = random.choice(re.findall(r'"[^"]*"(?=[,}\]])', damaged) or ["0"])
        damaged = damaged.replace(text, "[" * depth + text + "]" * depth, 1)
    return damaged.encode()


def _json_items(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every (container, key or index) in `value`."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _json_items(value[key])


def _change_json(items: list[tuple[Any, Any]], random: Random) -> None:
    """Change, delete or rename one of the items."""
    number = random.choice((random.choice(EXTREME_INTEGERS), random.randint(-4, 12)))
    pair = f"({random.choice((number, 0, 1, 2, 3))}, {random.randint(-4, 6)})"

    def replacement(value: Any) -> Any:
        elsewhere = [copy.deepcopy(container[key]) for container, key in random.choices(items, k=2)]
        same_type = [each for each in elsewhere if type(each) is type(value)]
        if random.random() < 0.7:
            return random.choice(
                [*same_type, number] if isinstance(value, int) else [*same_type, pair, str(number)]
            )
        other_types: list[Any] = [None, True, {}, [], [[]], {"": ""}, number, "full", "\ud800"]
        return random.choice([*other_types, *EXTREME_TEXTS, *EXTREME_FLOATS])

    container, key = random.choice(items)
    chance = random.random()
    if isinstance(container, list):
        damage_list(container, random, replacement)
    elif chance < 0.15:
        del container[key]
    elif chance < 0.3:
        container[random.choice((*container, *EXTREME_TEXTS))] = container.pop(key)
    else:
        container[key] = replacement(container[key])


# ONNX's protobuf messages


def damage_onnx(content: bytes, random: Random) -> bytes:
    """Return an ONNX model with changed fields, a damaged encoding, or any damaged bytes."""
    chance = random.random()
    if chance < 0.1:
        return damage_bytes(content, random)
    model = onnx.ModelProto.FromString(content)
    if chance < 0.3:
        return damage_encoding(model, random)
    for _ in range(random.choice((1, 1, 2, 3, 6))):
        damage_message(model, random)
    return model.SerializeToString() if chance < 0.95 else damage_encoding(model, random)


def damage_message(message: Message, random: Random) -> None:
    """Change one field, set or unset, of `message` or a message in it; the result can be encoded."""
    messages = list(_messages(message))
    owner = random.choice(messages)
    used = [field for field, _ in owner.ListFields()]
    field = random.choice(used if used and random.random() < 0.85 else list(owner.DESCRIPTOR.fields))
    value = getattr(owner, field.name)

    def replacement(value: Any) -> Any:
        same_type = list(_values_of_type(field, messages))
        if same_type and random.random() < 0.5:
            return copy.deepcopy(random.choice(same_type))
        match field.type:
            case FieldDescriptor.TYPE_MESSAGE:
                return GetMessageClass(field.message_type)()
            case FieldDescriptor.TYPE_BYTES:
                return damage_bytes(value or b"", random)
            case FieldDescriptor.TYPE_STRING:
                return random.choice(EXTREME_TEXTS)
            case FieldDescriptor.TYPE_FLOAT | FieldDescriptor.TYPE_DOUBLE:
                return random.choice(EXTREME_FLOATS)
        return random.choice((*EXTREME_INTEGERS, *range(24)))

    # A value out of the field's range, or an unknown enumerator, raises ValueError and changes nothing.
    with contextlib.suppress(ValueError):
        if hasattr(value, "extend"):
            items = list(value)
            damage_list(items, random, replacement)
            owner.ClearField(field.name)
            getattr(owner, field.name).extend(items)
        elif random.random() < 0.2:
            owner.ClearField(field.name)
        elif field.message_type is not None:
            value.CopyFrom(replacement(value))
        else:
            setattr(owner, field.name, replacement(value))


def _messages(message: Message) -> Iterator[Message]:
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if hasattr(value, "extend") else [value]:
                yield from _messages(inner)


def _values_of_type(field: FieldDescriptor, messages: list[Message]) -> Iterator[Any]:
    for message in messages:
        for other, value in message.ListFields():
            if (other.type, other.message_type) == (field.type, field.message_type):
                yield from value if hasattr(value, "extend") else [value]


def damage_encoding(message: Message, random: Random) -> bytes:
    """Return the encoding with damaged bytes around one field's tag and length, lengths left as they are."""
    content = message.SerializeToString()
    inner = random.choice(list(_messages(message))).SerializeToString()
    offset = content.find(inner) + random.choice((0, 0, random.randint(0, len(inner))))
    start, end = max(0, offset - 3), offset + 3
    return content[:start] + damage_bytes(content[start:end], random) + content[end:]
