"""Names that are taken only once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


class UniqueNames:
    """Gives every name only once."""

    def __init__(self, taken: Iterable[str | None]) -> None:
        self._taken = set(taken)
        # Where the search for a free number ended, so that n wishes for one name do not take n² steps.
        self._numbers: Counter[str] = Counter()

    def __contains__(self, name: str | None) -> bool:
        return name in self._taken

    def take(self, wanted: str) -> str:
        """Return `wanted`, with a number from 2 on where it is taken, and take it."""
        name = wanted
        number = max(2, self._numbers[wanted])
        while name in self._taken:
            name = f"{wanted}_{number}"
            number += 1
        self._numbers[wanted] = number
        self._taken.add(name)
        return name
