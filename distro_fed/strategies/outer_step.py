"""The server's own optimizer step: what it makes of the members' mean before it compresses and applies it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class OuterStep:
    """SGD on the mean pseudo-gradient, as the outer optimizer of DiLoCo (Douillard et al., arXiv 2311.08105).

    With ``d`` the members' mean change of the model in coefficient space, which is DiLoCo's outer gradient times -1::

        m    <- momentum * m + d                        m = 0 before the first round
        step  = learning_rate * (d + momentum * m)      with Nesterov's look-ahead (Sutskever et al., 2013)
        step  = learning_rate * m                       without

    DiLoCo takes a learning rate of 0.7 and a momentum of 0.9 with look-ahead.

    Parameters
    ----------
    learning_rate : float
    momentum : float
        0 <= momentum < 1. 0: nothing is kept from one round to the next.
    nesterov : bool
        Only matters with momentum.
    """

    def __init__(self, learning_rate: float = 1.0, momentum: float = 0.0, nesterov: bool = True) -> None:
        self._learning_rate, self._momentum, self._nesterov = learning_rate, momentum, nesterov
        #: the momentum, flat float32; None before the first round
        self.average: torch.Tensor | None = None

    def take_(self, mean: torch.Tensor) -> torch.Tensor:
        """Turn the mean of a round, flat float32 in the coefficient space, into the step; in place."""
        if self._momentum:
            if self.average is None:
                self.average = mean.clone()
            else:
                self.average.mul_(self._momentum).add_(mean)
            if self._nesterov:
                mean.add_(self.average, alpha=self._momentum)
            else:
                mean.copy_(self.average)
        return mean if self._learning_rate == 1.0 else mean.mul_(self._learning_rate)

    def reset(self) -> None:
        """Forget the momentum."""
        self.average = None
