"""Votes as frames: what is sent, and every check before anything received is used.

A frame is an :class:`~distro_fed.update.Update` with codec number 64. Its chain digest stands for the initial values
and for every step since, learning rates included, so a peer whose parameters went another way is found at once.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from distro_fed.errors import LayoutMismatch, SettingsError, UpdateError, WrongBase, WrongCodec
from distro_fed.layout import Layout, TensorSpec
from distro_fed.optim.coefficient_order import CHUNK_VALUES, CoefficientOrder
from distro_fed.optim.vote_codes import VoteSum, decode_sum, decode_votes, encode_sum, encode_votes
from distro_fed.optim.votes import Votes
from distro_fed.update import Kind, Update, check_update, parse_frame

#: numbers below 64 are left to the compressors
CODEC = 64
#: frames of this optimizer belong to no federated run
RUN = hashlib.blake2b(b"distro_fed.optim", digest_size=16).digest()


@dataclass(frozen=True)
class FrameCoder:
    """The public facts that all peers agree on, and the frames made by them.

    Attributes
    ----------
    order : CoefficientOrder
        Trainable tensors, and the numbers of their coefficients.
    k : int
        Coefficients of a full chunk in one frame, 1 to 4096.
    """

    order: CoefficientOrder
    k: int

    def __post_init__(self) -> None:
        if not (isinstance(self.k, int) and 1 <= self.k <= CHUNK_VALUES):
            raise SettingsError(f"k = {self.k!r}; a chunk of {CHUNK_VALUES} values sends 1 to {CHUNK_VALUES} of them")

    @classmethod
    def of_parameters(cls, parameters: Iterable[nn.Parameter], k: int) -> FrameCoder:
        """Coder for the parameters of a model, those left out that have ``requires_grad=False``.

        Values are not looked at: a model on the meta device is enough.

        Raises
        ------
        SettingsError
            If ``k`` is out of range.
        LayoutMismatch
            If nothing is left, or a parameter is not float32, bfloat16 or float16.
        """
        layout = Layout(
            TensorSpec(str(index), tuple(parameter.shape), str(parameter.dtype).removeprefix("torch."))
            for index, parameter in enumerate(parameter for parameter in parameters if parameter.requires_grad)
        )
        if not layout.numel:
            raise LayoutMismatch("there is no parameter to train: none was given, or all have requires_grad=False")
        return cls(CoefficientOrder(layout), k)

    def frame(self, steps: int, chain: bytes, votes: Votes) -> bytes:
        """Votes of one peer on the step that follows ``steps`` others."""
        return self._wrap(Kind.CLIENT, steps, chain, encode_votes(votes, self.order, self.k))

    def answer(self, steps: int, chain: bytes, total: VoteSum) -> bytes:
        """Sum of the votes of several peers."""
        return self._wrap(Kind.AGGREGATE, steps, chain, encode_sum(total))

    def open(self, frame: bytes, steps: int, chain: bytes) -> Votes:
        """Check a frame of one peer completely.

        Raises
        ------
        UpdateError
            One of its named subclasses.
        """
        return decode_votes(self._check(frame, Kind.CLIENT, steps, chain).body, self.order, self.k)

    def open_answer(self, frame: bytes, steps: int, chain: bytes) -> VoteSum:
        """Check the sum of several peers completely; raises as :meth:`open`."""
        return decode_sum(self._check(frame, Kind.AGGREGATE, steps, chain).body, self.order, self.k)

    def total(self, frames: Mapping[int, bytes], steps: int, chain: bytes) -> VoteSum:
        """Sum of the frames of single peers, by id; raises as :meth:`open`, naming the peer."""
        parts = []
        for peer in sorted(frames):
            try:
                parts.append(self.open(frames[peer], steps, chain))
            except UpdateError as error:
                raise type(error)(f"peer {peer}: {error}") from error
        return VoteSum(tuple(sorted(frames)), Votes.total(parts))

    def _wrap(self, kind: Kind, steps: int, chain: bytes, body: bytes) -> bytes:
        layout = self.order.layout.digest
        return Update(kind, CODEC, self.k, steps + 1, steps, RUN, layout, chain, body).to_bytes()

    def _check(self, frame: bytes, kind: Kind, steps: int, chain: bytes) -> Update:
        update = parse_frame(frame)
        try:
            check_update(
                update,
                kind=kind,
                run=RUN,
                layout=self.order.layout.digest,
                base_version=steps,
                chain=chain,
                codec=CODEC,
                parameters=self.k,
            )
        except WrongBase as error:
            raise WrongBase(
                f"{error}; the peers began with other parameters, missed a step, or use another learning rate or "
                "weight decay: make them equal with synchronise()"
            ) from None
        except WrongCodec as error:
            raise WrongCodec(f"{error}; k must be the same for all peers") from None
        return update


def next_chain(chain: bytes, votes: Votes, rates: Sequence[float], decays: Sequence[float]) -> bytes:
    """16 bytes that stand for the parameters after one more step."""
    state = hashlib.blake2b(chain + votes.digest(), digest_size=16, person=b"df-step")
    state.update(struct.pack(f"<{2 * len(rates)}d", *rates, *decays))
    return state.digest()
