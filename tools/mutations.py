"""Damages files for the fuzz test: any bytes, and with knowledge of their formats.

Every function takes what is intact and a seeded random source, and returns something else, which is damaged
as a rule and intact by chance. What a format protects (a checksum, lengths around lengths) is also damaged
underneath and sealed again, since damage that the first check sees never meets the second one.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import pickletools
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

EXTREME_INTEGERS = sorted(
    {0, 1, -1, 2, 3, 32, 33, 1000}
    | {
        sign * 2**bits + step
        for bits in (7, 8, 15, 16, 31, 32, 62, 63, 64)
        for sign in (1, -1)
        for step in (0, -1)
    }
)
EXTREME_TEXTS = ("", "\n", "\x1b[31m", "\u2028", "Conv", "convswap", "ai.onnx", "../x", "/", "x" * 70_000)
EXTREME_FLOATS = (0.0, -0.0, 1e-45, 1e39, -1e300, float("nan"), float("inf"))
LENGTH_DELIMITED = 2


def damage_bytes(content: bytes, random: Random) -> bytes:
    """Return `content` after one to four small changes that know nothing of its format."""
    damaged = bytearray(content)
    for _ in range(random.choice((1, 1, 2, 4))):
        random.choice(BYTE_CHANGES)(damaged, random)
    return bytes(damaged)


def _flip_bits(content: bytearray, random: Random) -> None:
    for _ in range(random.choice((1, 1, 3, 16))):
        if content:
            content[_place(content, random)] ^= 1 << random.randrange(8)


def _overwrite(content: bytearray, random: Random) -> None:
    start, end = _block(content, random)
    content[start:end] = random.randbytes(end - start)


def _truncate(content: bytearray, random: Random) -> None:
    del content[_place(content, random) :]


def _insert(content: bytearray, random: Random) -> None:
    start = _place(content, random)
    content[start:start] = random.randbytes(random.choice((1, 2, 4, 8, 100)))


def _delete(content: bytearray, random: Random) -> None:
    start, end = _block(content, random)
    del content[start:end]


def _duplicate(content: bytearray, random: Random) -> None:
    start, end = _block(content, random)
    content[start:start] = content[start:end] * random.choice((1, 1, 2, 100))


def _move(content: bytearray, random: Random) -> None:
    start, end = _block(content, random)
    block = content[start:end]
    del content[start:end]
    place = _place(content, random)
    content[place:place] = block


def _set_integer(content: bytearray, random: Random) -> None:
    width = random.choice((1, 2, 4, 8))
    start = _place(content, random)
    start -= random.choice((0, start % width))
    number = random.choice(EXTREME_INTEGERS) % 2 ** (8 * width)
    content[start : start + width] = number.to_bytes(width, random.choice(("little", "big")))


def _set_decimal(content: bytearray, random: Random) -> None:
    found = list(re.finditer(rb"-?[0-9]+", content[: 1 << 16]))
    if found:
        number = random.choice(found)
        content[number.start() : number.end()] = str(random.choice(EXTREME_INTEGERS)).encode()


BYTE_CHANGES: tuple[Callable[[bytearray, Random], None], ...] = (
    _flip_bits,
    _overwrite,
    _truncate,
    _insert,
    _delete,
    _duplicate,
    _move,
    _set_integer,
    _set_integer,
    _set_decimal,
)


def _place(content: bytearray, random: Random) -> int:
    """Return an index; two in three near the beginning or the end, where formats keep headers and tables."""
    last = max(0, len(content) - 1)
    near = min(last, 63)
    return random.choice((random.randint(0, near), last - random.randint(0, near), random.randint(0, last)))


def _block(content: bytearray, random: Random) -> tuple[int, int]:
    start = _place(content, random)
    return start, min(len(content), start + random.choice((1, 2, 4, 8, 16, 64, 1024)))


# mini-dnn


def damage_counted_layers(content: bytes, random: Random) -> bytes:
    """Return a mini-dnn weights file with layers, counts or numbers changed; or any damaged bytes."""
    if random.random() < 0.3:
        return damage_bytes(content, random)
    layers = _counted_layers(content)
    head = struct.pack("<i", len(layers))
    counts = [len(numbers) // 4 for numbers in layers]
    number = random.randrange(len(layers))
    match random.choice(("count", "layers", "swap", "drop", "repeat", "value", "value")):
        case "count":
            counts[number] = _signed(random)
        case "layers":
            head = struct.pack("<i", _signed(random))
        case "swap":
            other = random.randrange(len(layers))
            for values in (layers, counts):
                values[number], values[other] = values[other], values[number]
        case "drop":
            del layers[number], counts[number]
        case "repeat":
            layers.insert(number, layers[number])
            counts.insert(number, counts[number])
        case "value":
            number = random.choice([place for place, count in enumerate(counts) if count])
            start = 4 * random.randrange(counts[number])
            with np.errstate(over="ignore"):
                value = np.float64(random.choice(EXTREME_FLOATS)).astype("<f4").tobytes()
            layers[number] = layers[number][:start] + value + layers[number][start + 4 :]
    body = (struct.pack("<i", count) + numbers for count, numbers in zip(counts, layers, strict=True))
    return head + b"".join(body)


def _signed(random: Random) -> int:
    return (random.choice(EXTREME_INTEGERS) + 2**31) % 2**32 - 2**31


def _counted_layers(content: bytes) -> list[bytes]:
    """Return the numbers of each layer of an intact file."""
    layers, place = [], 4
    for _ in range(struct.unpack_from("<i", content)[0]):
        end = place + 4 + 4 * struct.unpack_from("<i", content, place)[0]
        layers.append(content[place + 4 : end])
        place = end
    return layers


# gzip

# As many zeros as compress to a few kilobytes; members that follow one another are read as one file.
ZERO_MEMBER = gzip.compress(bytes(16 << 20), mtime=0)


def damage_gzip(content: bytes, random: Random) -> bytes:
    """Return damaged gzip: the file itself, its content sealed again, or with gigabytes of zeros behind."""
    kind = random.random()
    if kind < 0.4:
        return damage_bytes(content, random)
    try:
        inside = gzip.decompress(content)
    except (OSError, EOFError, zlib.error):
        return damage_bytes(content, random)
    sealed = gzip.compress(damage_bytes(inside, random), compresslevel=1, mtime=0)
    return sealed if kind < 0.95 else sealed + ZERO_MEMBER * 100


# pickle, in NumPy's .npy files

# Operations that reach for programs, memory or what is not there.
PICKLE_OPERATIONS = (
    b"cos\nsystem\n",
    b"cbuiltins\neval\n",
    b"cnumpy\nndarray\n",
    b"X\xff\xff\xff\x7f",
    b"T\xff\xff\xff\x7f",
    b"r\xff\xff\xff\x7f",
    b"j\xff\xff\xff\x7f",
    b"J\xff\xff\xff\xff",
    b"J\xff\xff\xff\x7f",
    b"\x8a\xff" + b"\x7f" * 255,
    b"F1e400\n",
    b"I1\n",
    b"(t",
    b"(" * 3_000 + b"t" * 3_000,
    b"h\x00\x86q\x00" * 1_000,
    *(bytes([code]) for code in b"(.0])}2NRabesu\x81\x85\x86\x87\x88\x93\x94"),
)


def damage_npy(content: bytes, random: Random) -> bytes:
    """Return a .npy file of a pickled array with any bytes damaged, or operations of its pickle."""
    if random.random() < 0.3:
        return damage_bytes(content, random)
    # Magic and version take 8 bytes, the length of the header 2.
    start = 10 + int.from_bytes(content[8:10], "little")
    places = [place for _, _, place in pickletools.genops(content[start:])] + [len(content) - start]
    pickle = content[start:]
    operations = [pickle[place:end] for place, end in pairwise(places)]
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        place = random.randrange(len(operations))
        match random.choice(("delete", "repeat", "replace", "insert", "copy", "swap", "bytes", "bytes")):
            case "delete" if len(operations) > 1:
                del operations[place]
            case "repeat":
                operations[place:place] = [operations[place]] * random.choice((1, 2, 1_000))
            case "replace":
                operations[place] = random.choice(PICKLE_OPERATIONS)
            case "insert":
                operations.insert(place, random.choice(PICKLE_OPERATIONS))
            case "copy":
                operations[place] = random.choice(operations)
            case "swap":
                other = random.randrange(len(operations))
                operations[place], operations[other] = operations[other], operations[place]
            case _:
                operations[place] = damage_bytes(operations[place], random)
    return content[:start] + b"".join(operations)


# JSON


def damage_json(content: bytes, random: Random) -> bytes:
    """Return a JSON document with values swapped, deleted, repeated or of another type; or damaged bytes."""
    if random.random() < 0.15:
        return damage_bytes(content, random)
    try:
        document = json.loads(content)
    except ValueError:
        return damage_bytes(content, random)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        places = list(_json_places(document))
        if places:
            random.choice(JSON_CHANGES)(places, random)
    damaged = json.dumps(document)
    if random.random() < 0.1:
        damaged = _nested(damaged, random)
    return damaged.encode()


def _json_places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every (container, key or index) in `value`."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _json_places(value[key])


def _swap_values(places: list[tuple[Any, Any]], random: Random) -> None:
    # By way of text: a value that came to lie inside itself could not be written.
    (first, first_key), (second, second_key) = random.choice(places), random.choice(places)
    first_text, second_text = json.dumps(first[first_key]), json.dumps(second[second_key])
    first[first_key] = json.loads(second_text)
    with contextlib.suppress(LookupError):
        second[second_key] = json.loads(first_text)


def _delete_value(places: list[tuple[Any, Any]], random: Random) -> None:
    container, key = random.choice(places)
    del container[key]


def _repeat_value(places: list[tuple[Any, Any]], random: Random) -> None:
    lists = [(container, key) for container, key in places if isinstance(container, list)]
    if lists:
        container, key = random.choice(lists)
        text = json.dumps(container[key])
        container[key:key] = [json.loads(text) for _ in range(random.choice((1, 1, 2, 1000)))]


def _replace_value(places: list[tuple[Any, Any]], random: Random) -> None:
    leaves = [(container, key) for container, key in places if not isinstance(container[key], dict | list)]
    container, key = random.choice(leaves if leaves and random.random() < 0.8 else places)
    value = container[key]
    number = random.choice((random.choice(EXTREME_INTEGERS), random.randint(-4, 12)))
    pair = f"({random.choice((number, 0, 1, 2, 3))}, {random.randint(-4, 6)})"
    if isinstance(value, str) and random.random() < 0.7:
        texts = [inner[place] for inner, place in places if isinstance(inner[place], str)]
        container[key] = random.choice((pair, str(number), "True", "full", random.choice(texts)))
    elif isinstance(value, int) and random.random() < 0.7:
        container[key] = number
    else:
        others: list[Any] = [None, True, {}, [], [[]], {"": ""}, number, str(number), pair, "\ud800"]
        container[key] = random.choice([*others, *EXTREME_TEXTS, *EXTREME_FLOATS])


def _rename_key(places: list[tuple[Any, Any]], random: Random) -> None:
    keyed = [(container, key) for container, key in places if isinstance(container, dict)]
    if keyed:
        container, key = random.choice(keyed)
        container[random.choice((random.choice(keyed)[1], *EXTREME_TEXTS))] = container.pop(key)


JSON_CHANGES: tuple[Callable[[list[tuple[Any, Any]], Random], None], ...] = (
    _swap_values,
    _delete_value,
    _repeat_value,
    _replace_value,
    _replace_value,
    _replace_value,
    _replace_value,
    _rename_key,
)


def _nested(document: str, random: Random) -> str:
    """Put one value of `document` into as many lists as Python's parsers barely or no longer follow."""
    depth = random.choice((10, random.randint(900, 1000), 100_000))
    values = list(re.finditer(r'"[^"]*"(?=[,}\]])', document))
    if not values:
        return document
    value = random.choice(values)
    return document[: value.start()] + "[" * depth + value[0] + "]" * depth + document[value.end() :]


# protobuf


def damage_protobuf(content: bytes, random: Random, kind: type[Message]) -> bytes:
    """Return a message of type `kind` with fields changed, or its encoding damaged, or any of its bytes."""
    way = random.random()
    if way < 0.1:
        return damage_bytes(content, random)
    if way < 0.3:
        return damage_encoding(content, random)
    message = kind.FromString(content)
    for _ in range(random.choice((1, 1, 2, 3, 6))):
        damage_message(message, random)
    content = message.SerializeToString()
    return content if random.random() < 0.95 else damage_encoding(content, random)


def damage_message(message: Message, random: Random) -> None:
    """Change one field, set or not, of `message` or of a message in it; the result can be encoded."""
    messages = list(_messages(message))
    owner = random.choice(messages)
    used = [field for field, _ in owner.ListFields()]
    field = random.choice(used if used and random.random() < 0.85 else list(owner.DESCRIPTOR.fields))
    value = getattr(owner, field.name)
    # Values out of a field's range, and names that are not of an enumeration, are refused: no change then.
    with contextlib.suppress(ValueError):
        if hasattr(value, "extend"):
            _damage_repeated(value, field, messages, random)
        elif random.random() < 0.2:
            owner.ClearField(field.name)
        elif field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            value.CopyFrom(_message_like(field, messages, random))
        else:
            setattr(owner, field.name, _scalar(field, value, messages, random))


def _damage_repeated(values: Any, field: FieldDescriptor, messages: list[Message], random: Random) -> None:
    place = random.randrange(len(values)) if values else 0
    match random.choice(("delete", "replace", "replace", "replace", "add", "repeat", "clear", "reverse")):
        case "delete" if values:
            del values[place]
        case "replace" if values:
            if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
                values[place].CopyFrom(_message_like(field, messages, random))
            else:
                values[place] = _scalar(field, values[place], messages, random)
        case "repeat" if values:
            values.extend([values[place]] * random.choice((1, 2, 40)))
        case "clear":
            del values[:]
        case "reverse":
            turned = list(values)[::-1]
            del values[:]
            values.extend(turned)
        case _:
            if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
                values.add().CopyFrom(_message_like(field, messages, random))
            else:
                values.append(_scalar(field, None, messages, random))


def _messages(message: Message) -> Iterator[Message]:
    yield message
    for field, value in message.ListFields():
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            for inner in value if hasattr(value, "extend") else [value]:
                yield from _messages(inner)


def _message_like(field: FieldDescriptor, messages: list[Message], random: Random) -> Message:
    """Return a copy of a message of the field's type (maybe one that the field lies in), or an empty one."""
    alike = [message for message in messages if message.DESCRIPTOR is field.message_type]
    copy = GetMessageClass(field.message_type)()
    if alike and random.random() < 0.9:
        copy.CopyFrom(random.choice(alike))
    return copy


def _scalar(field: FieldDescriptor, value: Any, messages: list[Message], random: Random) -> Any:
    """Return a value of the field's type: an extreme one, or one that such a field has elsewhere."""
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        if field.type == FieldDescriptor.TYPE_BYTES:
            return damage_bytes(value or b"", random)
        if random.random() < 0.25:
            return random.choice(EXTREME_TEXTS)
        return random.choice(list(_texts(messages)) or EXTREME_TEXTS)
    if field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return random.choice(EXTREME_FLOATS)
    return random.choice((*EXTREME_INTEGERS, *range(24)))


def _texts(messages: list[Message]) -> Iterator[str]:
    for message in messages:
        for field, value in message.ListFields():
            if field.type == FieldDescriptor.TYPE_STRING:
                yield from value if hasattr(value, "extend") else [value]


def damage_encoding(content: bytes, random: Random) -> bytes:
    """Return an encoded message with one field's tag, length or number damaged; no length is put right."""
    start, end = 0, len(content)
    while True:
        fields = _encoded_fields(content, start, end)
        if not fields:
            return damage_bytes(content, random)
        tag, after_tag, payload, after = random.choice(fields)
        delimited = content[tag] & 7 == LENGTH_DELIMITED
        if not (delimited and random.random() < 0.8 and _encoded_fields(content, payload, after)):
            break
        start, end = payload, after
    match random.choice(("tag", "number", "number", "number", "delete", "duplicate", "cut")):
        case "tag":
            number, wire = random.choice(((content[tag] >> 3, 7), (0, 2), (2**29, 0), (1, 3), (1, 4), (2, 5)))
            return content[:tag] + _varint(number << 3 | wire) + content[after_tag:]
        case "number":
            # The length, or the value itself.
            last = payload if delimited else after
            number = random.choice((*EXTREME_INTEGERS, after - payload + 1, len(content)))
            varint = random.choice((_varint(number % 2**64), b"\xff" * 9 + b"\x7f", b"\x80" * 11, b"\xff"))
            return content[:after_tag] + varint + content[last:]
        case "delete":
            return content[:tag] + content[after:]
        case "duplicate":
            return content[:after] + content[tag:after] * random.choice((1, 2, 50)) + content[after:]
        case _:
            return content[: random.randint(tag, after)]


def _encoded_fields(content: bytes, start: int, end: int) -> list[tuple[int, int, int, int]]:
    """Return where each field's tag, length or value, payload and end lie; empty if this is no message."""
    fields = []
    place = start
    while place < end:
        tag = place
        key, place = _read_varint(content, place, end)
        after_tag = place
        size = {1: 8, 5: 4}.get(key & 7)
        if key & 7 == 0:
            _, place = _read_varint(content, place, end)
            size = 0
        elif key & 7 == LENGTH_DELIMITED:
            size, place = _read_varint(content, place, end)
        if size is None or place < 0 or key < 8 or place + size > end:
            return []
        fields.append((tag, after_tag, place, place + size))
        place += size
    return fields


def _read_varint(content: bytes, place: int, end: int) -> tuple[int, int]:
    """Return the number at `place` and where it ends, or a negative place if it does not."""
    number = 0
    for shift in range(0, 70, 7):
        if not 0 <= place < end:
            break
        number |= (content[place] & 0x7F) << shift
        place += 1
        if content[place - 1] < 0x80:
            return number, place
    return number, -1


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
