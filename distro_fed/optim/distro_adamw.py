"""DisTrO-AdamW: a drop-in for AdamW whose peers exchange a few bits a chunk instead of gradients."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from distro_fed.errors import LayoutMismatch, PeersDiffer, SettingsError
from distro_fed.model.trainable import tensor_bytes
from distro_fed.optim.exchange import Alone, Answer, Exchange, PeerState
from distro_fed.optim.frames import FrameCoder, next_chain
from distro_fed.optim.momentum import LocalMomentum, LocalStep, MomentumOptions
from distro_fed.optim.parameter_step import step_parameters

_KEY = "distro"


class DistroAdamW(Optimizer):
    """Data-parallel optimizer that exchanges the signs of a few DCT coefficients and nothing else.

    Every peer holds the whole model and its own momentum buffer, and calls :meth:`step` after ``backward`` on its own
    batch; gradients are never averaged (with DistributedDataParallel: under ``model.no_sync()``). A step is DeMo's
    (Peng et al., arXiv 2411.19870, Algorithm 1), but that peers exchange the signs of coefficients, not their values::

        e <- beta e + eta g                    decoupled momentum, with the learning rate inside
        q <- the k largest of T e per chunk    T: orthonormal DCT-II of 64 x 64
        e <- e - T' q                          what is sent leaves the buffer with its full value
        Q <- mean of sign(q) over the peers that sent the coefficient
        theta <- (1 - eta lambda) theta - eta sign(T' Q)

    **What "AdamW" means.** Weight decay is decoupled, and the step of every coordinate is the learning rate or zero,
    much as AdamW's is early in training; so AdamW's learning rate and schedule are where to start. With
    ``local_step="gradient"`` that is all of it: DeMo as published, signs apart. With ``local_step="adamw"``
    the direction ``m / (sqrt(v) + eps)`` of an AdamW at the peer takes the place of ``g`` in the first line; its
    moments are not exchanged. That is a variant of this package; the report on DisTrO does not say how its
    DisTrO-AdamW uses the moments.

    Parameters
    ----------
    params : iterable
        Parameters or groups of them, as for any optimizer. Those with ``requires_grad=False`` are left out. ``lr`` and
        ``weight_decay`` may differ between groups.
    lr : float
        Learning rate ``eta``; the same at every peer and step.
    k : int
        Coefficients that a full chunk of 4096 values sends, 1 to 4096. Tensors with fewer than two axes and smaller
        chunks send the same share, but are selected from together.
    momentum : float
        Decay ``beta`` of the buffer, at least 0 and below 1.
    weight_decay : float
        ``lambda``, decoupled.
    local_step : str
        ``"gradient"`` or ``"adamw"``, see above.
    betas, eps
        Of the local AdamW with ``local_step="adamw"``.
    exchange : Exchange, optional
        The way to the other peers; by default there are none.

    Attributes
    ----------
    exchange : Exchange
        May be replaced between steps, for example after a peer was lost.
    steps : int
        Steps applied since the start of training; the same at every peer.
    peers : tuple of int
        Ids of the peers whose votes the last step used.
    bytes_sent, bytes_received : int
        Bytes of all steps so far at this peer.

    Raises
    ------
    SettingsError
        If an option is out of range.
    LayoutMismatch
        If there is nothing to train, or a parameter is not float32, bfloat16 or float16.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 4e-4,
        *,
        k: int = 1,
        momentum: float = 0.999,
        weight_decay: float = 0.0,
        local_step: LocalStep = "gradient",
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        exchange: Exchange | None = None,
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        for group in self.param_groups:
            _check_group(group)
        self.parameters: list[nn.Parameter] = []
        self._group_of: list[int] = []
        for index, group in enumerate(self.param_groups):
            trained = [parameter for parameter in group["params"] if parameter.requires_grad]
            self.parameters += trained
            self._group_of += [index] * len(trained)
        self.coder = FrameCoder.of_parameters(self.parameters, k)
        self._options = MomentumOptions(momentum, local_step, betas, eps)
        self.momentum = self.new_momentum()
        self.exchange: Exchange = Alone() if exchange is None else exchange
        self.steps = 0
        self.peers: tuple[int, ...] = ()
        self.bytes_sent = self.bytes_received = 0
        self._chain: bytes | None = None

    def new_momentum(self) -> LocalMomentum:
        """An empty momentum buffer, for a peer that is simulated beside this one."""
        return LocalMomentum(self.coder.order, self.parameters[0].device, self._options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; only while the optimizer is being made, because the frames depend on the layout."""
        if hasattr(self, "coder"):
            raise SettingsError("parameter groups cannot be added later: all peers must have agreed on the tensors")
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step together with all peers.

        If the exchange fails or a frame is refused, nothing is applied, and what was to be sent returns to the momentum
        buffer: the gradient is not lost, and the next call is an ordinary step.

        Raises
        ------
        TrainingError
            If a local gradient is not finite.
        UpdateError
            If the frame of a peer is refused.
        FederationError
            If the exchange fails.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.exchange.offer(self._state_for_peers)
        frame = self.local_frame()
        try:
            self.apply(self.exchange.exchange(frame, self.steps))
        except BaseException:
            self.momentum.give_back()
            raise
        return loss

    @torch.no_grad()
    def local_frame(self, momentum: LocalMomentum | None = None) -> bytes:
        """First half of a step: the gradients in the parameters -> momentum buffer -> frame.

        Parameters
        ----------
        momentum : LocalMomentum, optional
            Buffer of the peer whose gradients these are; by default this optimizer's own. Of another one, call
            :meth:`~distro_fed.optim.momentum.LocalMomentum.delivered` after the frame was applied.
        """
        momentum = self.momentum if momentum is None else momentum
        momentum.add_gradients(self.parameters, self._rates("lr"))
        return self.coder.frame(self.steps, self.chain, momentum.take(self.coder.k))

    @torch.no_grad()
    def apply(self, answer: Answer) -> None:
        """Second half of a step: the frames of all peers -> the common step of the parameters.

        Raises
        ------
        UpdateError
            If a frame is refused; nothing has been applied then.
        """
        chain = self.chain
        if answer.total is None:
            total = self.coder.total(answer.frames, self.steps, chain)
        else:
            total = self.coder.open_answer(answer.total, self.steps, chain)
        rates, decays = self._rates("lr"), self._rates("weight_decay")
        step_parameters(self.parameters, self.coder.order, total.votes, rates, decays)
        self._chain = next_chain(chain, total.votes, rates, decays)
        self.steps += 1
        self.peers = total.peers
        self.bytes_sent += answer.sent
        self.bytes_received += answer.received
        if self.exchange.peer in total.peers:
            self.momentum.delivered()
        else:
            self.momentum.give_back()

    @property
    def chain(self) -> bytes:
        """16 bytes that stand for the initial parameters and every step since; equal at all peers."""
        if self._chain is None:
            self._chain = self.parameter_digest()
        return self._chain

    def parameter_digest(self) -> bytes:
        """16 bytes (BLAKE2b) over the values of all parameters."""
        state = hashlib.blake2b(self.coder.order.layout.digest, digest_size=16, person=b"df-values")
        for parameter in self.parameters:
            state.update(tensor_bytes(parameter))
        return state.digest()

    @torch.no_grad()
    def synchronise(self) -> None:
        """Take over parameters, step number and history of a peer that has gone furthest.

        For a peer that joins, that missed too much, or that differs. With an all-gather every peer calls it, and those
        that are furthest already are left as they are; with an aggregator only who needs it. The momentum buffer stays
        as it is: empty at a peer that joins. Learning-rate schedules must be brought to :attr:`steps` by the caller.

        Raises
        ------
        FederationError
            If no peer answers.
        """
        state = self.exchange.synchronise(self._state_for_peers())
        self.steps, self._chain = state.steps, state.chain

    def check_equal(self) -> None:
        """Compare the parameters of the peers of the last step, which all call this after it.

        Costs one pass over the parameters and 16 bytes of traffic for each peer.

        Raises
        ------
        PeersDiffer
            At every peer, if the values of any two differ in one bit.
        """
        digests = self.exchange.gather(self.parameter_digest(), self.steps, self.peers or (self.exchange.peer,))
        (most, _), *others = Counter(digests[peer] for peer in sorted(digests)).most_common()
        if others:
            apart = [peer for peer in sorted(digests) if digests[peer] != most]
            raise PeersDiffer(
                f"after {self.steps} steps peers {apart} of {sorted(digests)} have other parameters than most: another "
                "kind of processor or library version rounds differently, or a memory is faulty; make them "
                "equal with synchronise()"
            )

    def state_dict(self) -> dict[str, Any]:
        """What :meth:`load_state_dict` needs to go on with the same bits; parameters are not part of it."""
        return {
            **super().state_dict(),
            _KEY: {
                "steps": self.steps,
                "chain": self.chain,
                "layout": self.coder.order.layout.digest,
                "bytes": (self.bytes_sent, self.bytes_received),
                "momentum": self.momentum.state_dict(),
            },
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore; load the parameters of the same moment into the model as well.

        Raises
        ------
        LayoutMismatch
            If the state belongs to other tensors, or to another optimizer.
        """
        own = state_dict.get(_KEY)
        if own is None or own["layout"] != self.coder.order.layout.digest:
            raise LayoutMismatch(
                "the state is not that of a DistroAdamW over these tensors: build model and optimizer as they were "
                "when it was saved"
            )
        super().load_state_dict({key: value for key, value in state_dict.items() if key != _KEY})
        self.momentum.load_state_dict(own["momentum"])
        self.steps, self._chain = own["steps"], own["chain"]
        self.bytes_sent, self.bytes_received = own["bytes"]

    def _state_for_peers(self) -> PeerState:
        return PeerState(self.steps, self.chain, [parameter.detach() for parameter in self.parameters])

    def _rates(self, name: str) -> list[float]:
        values = [float(group[name]) for group in self.param_groups]
        return [values[index] for index in self._group_of]


def _check_group(group: dict[str, Any]) -> None:
    for name in ("lr", "weight_decay"):
        value = float(group[name])
        if not 0 <= value < float("inf"):
            raise SettingsError(f"{name} = {value}; it must be finite and not negative")
