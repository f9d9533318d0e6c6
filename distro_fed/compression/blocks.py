"""Walk a long vector block by block, so that temporary memory does not grow with the model."""

from __future__ import annotations

from collections.abc import Iterator

#: values in a block: its temporaries stay in a processor's cache (a multiple of 8, as packed codes need)
BLOCK = 2**17


def blocks(start: int, stop: int, size: int = BLOCK) -> Iterator[slice]:
    """Consecutive slices of at most ``size`` values that cover ``[start, stop)``; none if it is empty."""
    for first in range(start, stop, size):
        yield slice(first, min(first + size, stop))
