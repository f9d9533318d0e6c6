"""What can be said of a run and its members at one moment."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class RunState(StrEnum):
    """What a run is doing. One whose process was killed says ``running``; its last sign of life tells."""

    STARTING = "starting"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"


class MemberState(StrEnum):
    """What is known of a member in the round that it was last heard of."""

    NOT_ASKED = "not asked"
    TRAINING = "training"
    DONE = "done"
    LEFT_OUT = "left out"
    NO_ANSWER = "no answer"
    LATE = "late"


#: states of those that the federation waited for in vain
LATE_STATES = (MemberState.NO_ANSWER, MemberState.LATE)


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """One member.

    Attributes
    ----------
    name : str
        A stand-in (``node 123``) until the member has told it.
    state : MemberState
    round : int
        The round that ``state`` is about.
    reason : str
        Why it is left out, did not answer, or came late.
    seconds : float or None
        How long its last answer took, or how long it was waited for.
    loss, held_out_loss : float or None
        The last ones that it reported, nats per token.
    bytes_up, bytes_down : int
        Over the whole run.
    left_out, no_answers, late_replies, drifts : int
        How many times.
    """

    name: str
    state: MemberState = MemberState.NOT_ASKED
    round: int = 0
    reason: str = ""
    seconds: float | None = None
    loss: float | None = None
    held_out_loss: float | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    left_out: int = 0
    no_answers: int = 0
    late_replies: int = 0
    drifts: int = 0


@dataclass(frozen=True, slots=True)
class RunStatus:
    """One moment of a run. Times are unix seconds; 0 stands for not yet.

    Attributes
    ----------
    state : RunState
    error : str
        Why it failed.
    name, mode, compressor, rounds, local_steps, parameters, trainable
        As in the event ``run_started``.
    round : int
        The round that was started last.
    in_round : bool
        It is still going on.
    asked : int
        Members asked to train in it.
    version : int
        Of the server's replica.
    skipped_rounds : tuple of int
        Rounds with too few replies.
    resumed : int
        Times that the run was taken up again from a checkpoint.
    train_loss, held_out_loss : float or None
        Means over the members, the last ones known.
    started, last_event, round_started, ends : float
        ``ends`` is an estimate; 0 without one.
    last_round_seconds : float or None
    members : dict of str to MemberStatus
        By name, sorted.
    """

    state: RunState = RunState.STARTING
    error: str = ""
    name: str = ""
    mode: str = ""
    compressor: str = ""
    rounds: int = 0
    local_steps: int = 0
    parameters: int = 0
    trainable: int = 0
    round: int = 0
    in_round: bool = False
    asked: int = 0
    version: int = 0
    skipped_rounds: tuple[int, ...] = ()
    resumed: int = 0
    train_loss: float | None = None
    held_out_loss: float | None = None
    started: float = 0.0
    last_event: float = 0.0
    round_started: float = 0.0
    ends: float = 0.0
    last_round_seconds: float | None = None
    members: dict[str, MemberStatus] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to come, unless somebody resumes the run."""
        return self.state in (RunState.FINISHED, RunState.FAILED)

    @property
    def rounds_done(self) -> int:
        """Rounds that are closed, skipped ones too."""
        return self.round - self.in_round

    def count(self, *states: MemberState) -> int:
        """Members in one of these states."""
        return sum(member.state in states for member in self.members.values())

    def total(self, number: str) -> int:
        """Sum over the members of one of their counts, such as ``"bytes_up"``."""
        return sum(getattr(member, number) for member in self.members.values())

    def seconds(self, now: float) -> float:
        """Since the start of the run, up to its end if it is over."""
        return max(0.0, (self.last_event if self.is_over else now) - self.started) if self.started else 0.0

    def round_seconds(self, now: float) -> float | None:
        """Since the round that goes on was started; None between rounds."""
        return max(0.0, now - self.round_started) if self.in_round and not self.is_over else None

    def seconds_left(self, now: float) -> float | None:
        """Until the end, if the rounds to come take as long as those before."""
        return max(0.0, self.ends - now) if self.ends and not self.is_over else None

    def silent_seconds(self, now: float) -> float | None:
        """Since the last event."""
        return max(0.0, now - self.last_event) if self.last_event else None

    def to_dict(self, now: float) -> dict[str, Any]:
        """Everything as plain values, with what follows from the time of now."""
        facts = asdict(self)
        members = list(facts.pop("members").values())
        sums = ("bytes_up", "bytes_down", "left_out", "no_answers", "late_replies", "drifts")
        return {
            **facts,
            "rounds_done": self.rounds_done,
            "seconds": self.seconds(now),
            "round_seconds": self.round_seconds(now),
            "seconds_left": self.seconds_left(now),
            "silent_seconds": self.silent_seconds(now),
            **{number: self.total(number) for number in sums},
            "members": members,
        }
