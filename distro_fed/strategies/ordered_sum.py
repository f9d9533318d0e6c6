"""A weighted sum of updates, and their mean, that do not depend on the order in which they arrive.

Floating-point addition is not associative, so the sum is always taken in one order: by the members' names.
An update is added as soon as all that come before it are settled, and waits otherwise, in memory up to a
limit and in a temporary file beyond it. Memory therefore does not grow with the number of members.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from distro_fed.agreement import Agreement
from distro_fed.compression.base import Decoded
from distro_fed.compression.blocks import blocks
from distro_fed.errors import FederationError
from distro_fed.presets import SELECTING
from distro_fed.update import Update, parse_frame

if TYPE_CHECKING:
    import torch

#: bytes of updates that may wait in memory
WAITING_LIMIT = 16 * 2**20


class OrderedSum:
    """Adds updates to an accumulator, ordered by name.

    Parameters
    ----------
    agreement : Agreement
        Decodes what had to wait.
    accumulator : torch.Tensor
        Flat float32 in the coefficient space of the round; updates are added in place.
    members : mapping of int to str or None
        Node ids from which an update may come, with the name that orders them. While any name is
        unknown nothing can be added yet; :meth:`settle` tells it.
    waiting_limit : int, optional
        Bytes that may wait in memory; by default :data:`WAITING_LIMIT`.
    aggregation : str
        What :meth:`mean` is: ``"mean"`` over all members, or ``"contributors"``, for every coefficient over the members
        that sent it. The latter takes a second vector of the accumulator's size.
    """

    def __init__(
        self,
        agreement: Agreement,
        accumulator: torch.Tensor,
        members: Mapping[int, str | None],
        waiting_limit: int | None = None,
        aggregation: str = "mean",
    ) -> None:
        self._agreement = agreement
        self._contributed = accumulator.new_zeros(accumulator.shape) if aggregation == "contributors" else None
        self._accumulator = accumulator
        self._names: dict[int, str | None] = dict(members)
        self._limit = WAITING_LIMIT if waiting_limit is None else waiting_limit
        self._settled: dict[int, tuple[_Waiting, float] | None] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._in_memory = 0
        self.total_weight = 0.0

    def settle(
        self, node_id: int, name: str | None, update: Update | None, decoded: Decoded | None, weight: float
    ) -> None:
        """Give the update of one member, or None if there will be none.

        Parameters
        ----------
        node_id : int
        name : str or None
            Orders the member; None keeps the name that was known.
        update : Update or None
            Already checked: decoding it again cannot fail.
        decoded : Decoded or None
            Its content, used if it can be added at once.
        weight : float
        """
        if name is not None and self._names.get(node_id) is None:
            self._names[node_id] = name
        if update is None:
            self._names[node_id] = self._names.get(node_id) or ""
            self._settled[node_id] = None
        elif self._next() == node_id and decoded is not None:
            self._settled[node_id] = None
            self._add(decoded, weight)
        else:
            self._settled[node_id] = (self._wait(node_id, update), weight)
        self._fold()

    def close(self) -> float:
        """Add what still waits, without those that never came; returns the total weight."""
        for node_id in list(self._names):
            if node_id not in self._settled:
                self.settle(node_id, None, None, None, 0.0)
        if self._folder is not None:
            self._folder.cleanup()
        return self.total_weight

    def mean(self) -> torch.Tensor:
        """Weighted mean of what was added, in the memory of the accumulator; call once, after :meth:`close`.

        Coefficients that no contributor sent are 0.
        """
        if self._contributed is None:
            return self._accumulator.div_(self.total_weight)
        for block in blocks(0, self._accumulator.numel()):
            weights = self._contributed[block]
            self._accumulator[block].div_(weights.masked_fill_(weights == 0, 1.0))
        return self._accumulator

    def _next(self) -> int | None:
        if any(name is None for name in self._names.values()):
            return None
        return min(self._names, key=self._rank, default=None)

    def _rank(self, node_id: int) -> tuple[str, int]:
        return self._names[node_id] or "", node_id

    def _fold(self) -> None:
        while (head := self._next()) is not None and head in self._settled:
            entry = self._settled.pop(head)
            del self._names[head]
            if entry is not None:
                waiting, weight = entry
                self._in_memory -= waiting.in_memory
                self._add(self._agreement.decode(waiting.read()), weight)

    def _add(self, decoded: Decoded, weight: float) -> None:
        decoded.add_to(self._accumulator, weight)
        if self._contributed is not None:
            from distro_fed.compression.sparse import Sparse

            if not isinstance(decoded, Sparse):
                known = ", ".join(SELECTING)
                raise FederationError(f"a mean over contributors needs a compressor that selects: {known}")
            decoded.add_weight_to(self._contributed, weight)
        self.total_weight += weight

    def _wait(self, node_id: int, update: Update) -> _Waiting:
        if self._in_memory + update.size <= self._limit:
            self._in_memory += update.size
            return _Waiting(update, None)
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="distro-fed-")
        path = Path(self._folder.name) / f"{node_id}.frame"
        path.write_bytes(update.to_bytes())
        return _Waiting(None, path)


class _Waiting:
    """An update in memory or in a file."""

    def __init__(self, update: Update | None, path: Path | None) -> None:
        self._update, self._path = update, path

    @property
    def in_memory(self) -> int:
        return self._update.size if self._update else 0

    def read(self) -> Update:
        if self._update is not None:
            return self._update
        if self._path is None:
            raise ValueError("an update waits either in memory or in a file")
        update = parse_frame(self._path.read_bytes())
        self._path.unlink()
        return update
