from __future__ import annotations

import dataclasses

import pytest
import torch

from distro_fed import errors
from distro_fed.agreement import Agreement
from distro_fed.compression import make_compressor
from distro_fed.layout import Layout, TensorSpec
from distro_fed.replica import Replica, UpdateLog, advance
from distro_fed.update import Kind, Update

LAYOUT = Layout([TensorSpec("a", (4, 3), kind="matrix"), TensorSpec("b", (5,), kind="vector")])


def agreement(name: str = "quantized", **options: int) -> Agreement:
    coder = make_compressor(name, **options)
    return Agreement(LAYOUT, coder, coder, seed=7, run_id=1)


def replica(agreed: Agreement, seed: int = 0) -> Replica:
    return Replica.initial(agreed, torch.randn(LAYOUT.numel, generator=torch.Generator().manual_seed(seed)))


def next_update(source: Replica, round_: int) -> Update:
    agreed = source.agreement
    space = agreed.space(source.key(round_))
    mean = torch.randn(space.numel, generator=torch.Generator().manual_seed(round_))
    body = agreed.downlink.encode(mean, space, 0)
    return agreed.frame(Kind.AGGREGATE, round_, source.version, source.chain, body)


@pytest.mark.parametrize(
    "name", ["dense", "quantized", "topk", "dct-topk", "subspace", "lowrank", "tracking", "tracking-topk"]
)
def test_two_replicas_that_apply_the_same_updates_stay_bit_for_bit_equal(name: str) -> None:
    agreed = agreement(name, rank=1)
    server, member = replica(agreed), replica(agreed)
    for round_ in (1, 2, 3):
        update = next_update(server, round_)
        server.apply(update)
        member.apply(update, scratch=torch.full((agreed.space(member.key(round_)).numel,), 9.0))
    assert torch.equal(server.values, member.values)
    assert server.chain == member.chain
    assert server.version == 3
    assert not torch.equal(server.values, replica(agreed).values)


def test_chain_tells_other_initial_values_and_other_updates_apart() -> None:
    agreed = agreement()
    one, two = replica(agreed), replica(agreed, seed=1)
    assert one.chain != two.chain
    left, right = replica(agreed), replica(agreed)
    left.apply(next_update(left, 1))
    right.apply(next_update(right, 2))
    assert left.chain != right.chain


def test_an_update_on_top_of_another_version_changes_nothing() -> None:
    server = replica(agreement())
    update = next_update(server, 1)
    server.apply(update)
    before = server.values.clone()
    with pytest.raises(errors.WrongBase):
        server.apply(update)
    assert torch.equal(server.values, before)
    assert server.version == 1


def test_a_keyframe_is_exact() -> None:
    server = replica(agreement())
    server.apply(next_update(server, 1))
    copy = Replica.from_keyframe(server.agreement, server.keyframe(1))
    assert torch.equal(copy.values, server.values)
    assert (copy.version, copy.chain) == (1, server.chain)


def test_a_keyframe_carries_what_is_remembered() -> None:
    """A member that starts from it goes on bit for bit."""
    server = replica(agreement("lowrank", rank=2, bits=8))
    for round_ in (1, 2, 3):
        joined = Replica.from_keyframe(server.agreement, server.keyframe(round_))
        assert (joined.version, joined.chain) == (server.version, server.chain)
        update = next_update(server, round_)
        for member in (server, joined):
            member.apply(update)
        assert server.memory is not None
        assert joined.memory is not None
        assert torch.equal(joined.memory, server.memory)
        assert torch.equal(joined.values, server.values)
    whole = server.keyframe(4)
    assert whole.size == server.agreement.keyframe_bytes(server.version)
    body = bytes(whole.body)
    for bad in (body[: 4 * LAYOUT.numel], body + bytes(4), body[:-4] + b"\x00\x00\xc0\x7f"):
        with pytest.raises(errors.CorruptBody):
            Replica.from_keyframe(server.agreement, dataclasses.replace(whole, body=bad))


def test_an_update_of_another_side_or_rank_is_refused() -> None:
    """A round's body is checked against that round's space, whatever the frame says of other rounds."""
    server = replica(agreement("lowrank", rank=2, bits=8))
    first = next_update(server, 1)
    server.apply(first)
    second = next_update(server, 2)
    with pytest.raises(errors.CorruptBody):
        server.apply(dataclasses.replace(second, body=first.body))
    growing = replica(agreement("subspace", rank=1, bits=8, final_rank=2, rounds=3))
    update = next_update(growing, 1)
    with pytest.raises(errors.CorruptBody):
        growing.apply(dataclasses.replace(next_update(growing, 3), body=update.body))
    with pytest.raises(errors.WrongCodec):
        growing.apply(dataclasses.replace(update, round=3))
    assert growing.version == 0


def test_log_gives_what_a_version_lacks() -> None:
    server, log = replica(agreement()), UpdateLog()
    frames = []
    for round_ in (1, 2, 3):
        update = next_update(server, round_)
        server.apply(update)
        log.append(update)
        frames.append(update.to_bytes())
    assert log.frames_since(0) == frames
    assert log.frames_since(2) == frames[2:]
    assert log.frames_since(3) == []
    assert log.frames_since(4) is None
    log.prune(keep_bytes=len(frames[2]))
    assert log.start_version == 2
    assert log.frames_since(1) is None
    assert log.frames_since(2) == frames[2:]
    with pytest.raises(errors.ReplicaError, match="does not continue"):
        log.append(next_update(replica(agreement()), 9))


def test_advance_passes_over_what_is_there_and_refuses_a_gap() -> None:
    server, member = replica(agreement()), replica(agreement())
    updates = []
    for round_ in (1, 2, 3):
        updates.append(next_update(server, round_))
        server.apply(updates[-1])
    member.apply(updates[0])
    assert advance(member, updates, 3).chain == server.chain
    with pytest.raises(errors.WrongBase):
        advance(replica(agreement()), updates[1:], 3)
    keyed = advance(replica(agreement(), seed=5), [server.keyframe(3)], 3)
    assert torch.equal(keyed.values, server.values)


def test_run_digest_covers_every_fact() -> None:
    base = agreement()
    coder = make_compressor("quantized", bits=2)
    others = [
        Agreement(LAYOUT, coder, base.downlink, 7, "", 1),
        Agreement(LAYOUT, base.uplink, coder, 7, "", 1),
        Agreement(LAYOUT, base.uplink, base.downlink, 8, "", 1),
        Agreement(LAYOUT, base.uplink, base.downlink, 7, "00", 1),
        Agreement(LAYOUT, base.uplink, base.downlink, 7, "", 2),
        Agreement(Layout([TensorSpec("a", (17,))]), base.uplink, base.downlink, 7, "", 1),
    ]
    assert len({base.run, *(other.run for other in others)}) == 7
