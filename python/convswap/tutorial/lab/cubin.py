"""What a compiled kernel says of itself, without a card: its sections, by the format ELF."""

from __future__ import annotations

import struct

_MAGIC = b"\x7fELF\x02\x01"
# In the header: where the table of sections is, how long an entry is, how many there are, and which has the
# names.
_TABLE_AT, _ENTRY_SIZE_AT = 40, 58
_NAME, _OFFSET, _SIZE = 0, 24, 32


def declared_shared_bytes(code: bytes) -> int:
    """Return the bytes of shared memory that a kernel's variables take in a block; 0 where it is no cubin."""
    if not code.startswith(_MAGIC):
        return 0
    (table,) = struct.unpack_from("<Q", code, _TABLE_AT)
    size, count, of_names = struct.unpack_from("<HHH", code, _ENTRY_SIZE_AT)
    entries = [table + size * number for number in range(count)]
    (names,) = struct.unpack_from("<Q", code, entries[of_names] + _OFFSET)
    found = 0
    for entry in entries:
        (name,) = struct.unpack_from("<I", code, entry + _NAME)
        if code.startswith(b".nv.shared.", names + name):
            (bytes_of_section,) = struct.unpack_from("<Q", code, entry + _SIZE)
            found = max(found, bytes_of_section)
    return found
