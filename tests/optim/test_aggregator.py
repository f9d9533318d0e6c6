from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from distro_fed.errors import ChecksumMismatch, PeerLost, PeersDiffer, SettingsError, WrongBase
from distro_fed.optim import Aggregator, AggregatorLink, DistroAdamW, byte_store
from distro_fed.optim.byte_store import ByteStore
from distro_fed.optim.exchange import Answer, PeerState
from tests.optim.processes import PATIENCE, Processes, connect, die, options, set_gradients, simulate, weights


@contextmanager
def serving(store: dist.Store, **settings: Any) -> Iterator[Aggregator]:
    coder = DistroAdamW(weights(), **options()).coder
    aggregator = Aggregator(store, coder, **{"timeout": PATIENCE, **settings})
    done = threading.Event()
    thread = threading.Thread(target=aggregator.serve, args=(done.is_set,))
    thread.start()
    yield aggregator
    done.set()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def new_peer(store: dist.Store, peer: int, seed: int = 0, **link: Any) -> DistroAdamW:
    return DistroAdamW(weights(seed), **options(), exchange=AggregatorLink(store, peer, **link))


def step_all(optimizers: list[DistroAdamW], step: int) -> None:
    """One step of all, each in a thread of its own as none can go on without the others."""
    errors: list[BaseException] = []

    def work(optimizer: DistroAdamW) -> None:
        try:
            set_gradients(optimizer.parameters, step, optimizer.exchange.peer)
            optimizer.step()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(optimizer,)) for optimizer in optimizers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    if errors:
        raise errors[0]


def test_the_bits_and_bytes_are_those_of_simulated_peers() -> None:
    store = dist.HashStore()
    with serving(store, min_peers=3):
        optimizers = [new_peer(store, peer) for peer in range(3)]
        for step in range(4):
            step_all(optimizers, step)
    simulated = simulate(4, 3, "aggregator")
    for peer, optimizer in enumerate(optimizers):
        assert optimizer.parameter_digest() == simulated.optimizer.parameter_digest()
        assert optimizer.chain == simulated.optimizer.chain
        assert optimizer.bytes_sent == simulated.bytes_sent[peer]
        assert optimizer.bytes_received == simulated.bytes_received[peer]


@pytest.mark.parametrize(("settings", "later"), [({"min_peers": 2}, False), ({"start_peers": 2}, True)])
def test_no_step_is_closed_with_fewer_peers_than_needed(settings: dict[str, int], later: bool) -> None:
    store = dist.HashStore()
    aggregator = Aggregator(store, DistroAdamW(weights(), **options()).coder, timeout=0.01, **settings)
    peer = new_peer(store, 0)
    put_frame(store, 0, peer)
    assert not aggregator.close_step()
    put_frame(store, 1, new_peer(store, 1))
    assert aggregator.close_step()
    finish(store, peer)
    put_frame(store, 0, peer)
    time.sleep(0.02)
    assert aggregator.close_step() is later


def put_frame(store: dist.Store, peer: int, optimizer: DistroAdamW, damage: bool = False) -> None:
    """What a link does before it waits."""
    set_gradients(optimizer.parameters, optimizer.steps, peer)
    frame = optimizer.local_frame()
    link = optimizer.exchange
    assert isinstance(link, AggregatorLink)
    if not link._joined:
        link._tell("join")
        link._joined = True
    ByteStore(store).put(f"frame/{optimizer.steps}/{peer}", frame[:-1] if damage else frame)
    store.add(f"sign/{peer}", 1)


def test_whoever_was_heard_from_lately_is_waited_for() -> None:
    store = dist.HashStore()
    coder = DistroAdamW(weights(), **options()).coder
    aggregator = Aggregator(store, coder, timeout=0.5)
    fast, slow = new_peer(store, 0), new_peer(store, 1)
    put_frame(store, 0, fast)
    put_frame(store, 1, slow)
    assert aggregator.close_step()
    finish(store, fast)
    put_frame(store, 0, fast)
    assert not aggregator.close_step()  # the slow one has sent nothing for this step, but a moment ago for the last
    time.sleep(0.6)
    assert aggregator.close_step()
    finish(store, fast)
    assert fast.peers == (0,)
    put_frame(store, 1, slow)  # its frame for the second step is late, and a sign of life
    put_frame(store, 0, fast)
    assert not aggregator.close_step()
    finish(store, slow)  # applies the first step
    finish(store, slow, give=True)
    put_frame(store, 1, slow)
    assert aggregator.close_step()
    for optimizer in (fast, slow):
        finish(store, optimizer)
    assert slow.peers == (0, 1)
    assert fast.parameter_digest() == slow.parameter_digest()


def finish(store: dist.Store, optimizer: DistroAdamW, give: bool = False) -> None:
    """What an optimizer does after its link has waited."""
    if give:
        set_gradients(optimizer.parameters, optimizer.steps, optimizer.exchange.peer)
        optimizer.local_frame()
    optimizer.apply(Answer({}, ByteStore(store).get(f"answer/{optimizer.steps}"), 0, 0))


def test_unsound_frames_and_other_histories_are_left_out_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    store = dist.HashStore()
    aggregator = Aggregator(store, DistroAdamW(weights(), **options()).coder)
    optimizers = [new_peer(store, 0, seed=9), *(new_peer(store, peer) for peer in (1, 2, 3))]
    for peer, optimizer in enumerate(optimizers):
        put_frame(store, peer, optimizer, damage=peer == 3)
    with caplog.at_level(logging.WARNING):
        assert aggregator.close_step()
    assert "step 0 without peer 0: WrongBase" in caplog.text
    assert "step 0 without peer 3: TruncatedFrame" in caplog.text
    finish(store, optimizers[1])
    assert optimizers[1].peers == (1, 2)
    with pytest.raises(WrongBase, match="synchronise"):
        finish(store, optimizers[0])
    left_out = optimizers[3].momentum.state_dict()["coefficients"]
    finish(store, optimizers[3])
    assert torch.equal(optimizers[3].momentum.coefficients, left_out)


def test_a_step_with_too_few_sound_frames_waits_for_more() -> None:
    store = dist.HashStore()
    aggregator = Aggregator(store, DistroAdamW(weights(), **options()).coder)
    peer = new_peer(store, 0)
    put_frame(store, 0, peer, damage=True)
    assert not aggregator.close_step()
    assert not ByteStore(store).has("frame/0/0")
    peer.momentum.clear()
    put_frame(store, 0, peer)
    assert aggregator.close_step()


def test_a_joiner_gets_parameters_and_step_and_takes_part() -> None:
    store = dist.HashStore()
    with serving(store, min_peers=2):
        optimizers = [new_peer(store, peer) for peer in range(2)]
        for step in range(2):
            step_all(optimizers, step)
        joiner = new_peer(store, 7, seed=5)
        asking = threading.Thread(target=joiner.synchronise)
        asking.start()
        while not store.add("state/wanted", 0):
            time.sleep(0.01)
        step_all(optimizers, 2)
        asking.join(PATIENCE)
        assert joiner.steps == 2
        assert not joiner.momentum.coefficients.any()
        step_all([joiner], 2)  # the answer is there already: it is one step behind
        assert joiner.peers == (0, 1)
        assert joiner.parameter_digest() == optimizers[0].parameter_digest()
        optimizers.append(joiner)
        for step in range(3, 5):
            step_all(optimizers, step)
        assert optimizers[0].peers == (0, 1, 7)
        assert len({optimizer.parameter_digest() for optimizer in optimizers}) == 1
        checks = [threading.Thread(target=optimizer.check_equal) for optimizer in optimizers]
        for check in checks:
            check.start()
        for check in checks:
            check.join(PATIENCE)


def test_one_peer_answers_a_request_and_once() -> None:
    store = dist.HashStore()
    peers = [new_peer(store, peer) for peer in range(2)]
    asked: list[int] = []

    def state_of(optimizer: DistroAdamW) -> PeerState:
        asked.append(optimizer.exchange.peer)
        return optimizer._state_for_peers()

    store.add("state/wanted", 1)
    for optimizer in [*peers, *peers]:
        optimizer.exchange.offer(lambda optimizer=optimizer: state_of(optimizer))
    assert asked == [0]


def test_parameters_that_were_damaged_on_the_way_are_refused() -> None:
    store = dist.HashStore()
    donor, joiner = new_peer(store, 0), new_peer(store, 1, seed=5)
    before = joiner.parameter_digest()
    store.add("state/wanted", 1)
    donor.exchange.offer(donor._state_for_peers)
    store.set("state/1/value/0/0", bytes(4 * 128 * 64))
    for wanted in (-1, 0):  # the request that was answered above
        store.add("state/wanted", wanted)
    with pytest.raises(ChecksumMismatch, match="damaged"):
        joiner.synchronise()
    assert joiner.parameter_digest() == before


def test_drift_is_found() -> None:
    store = dist.HashStore()
    with serving(store, min_peers=2):
        optimizers = [new_peer(store, peer) for peer in range(2)]
        step_all(optimizers, 0)
        optimizers[1].parameters[1].detach()[0] += 1
        store.set("check/1/1", "1")
        store.set("check/1/1/0", optimizers[1].parameter_digest())
        with pytest.raises(PeersDiffer, match=r"peers \[1\] of \[0, 1\]"):
            optimizers[0].check_equal()


def test_a_peer_too_far_behind_is_told_so() -> None:
    store = dist.HashStore()
    with serving(store, history=2):
        fast, slow = new_peer(store, 0), new_peer(store, 1)
        for step in range(4):
            step_all([fast], step)
        with pytest.raises(WrongBase, match="has applied 0 steps, and the aggregator keeps answers from step 2"):
            step_all([slow], 0)
    assert not store.check(["answer/1"])
    assert store.check(["answer/2"])


def test_who_leaves_is_not_waited_for_and_the_last_one_ends_it() -> None:
    store = dist.HashStore()
    coder = DistroAdamW(weights(), **options()).coder
    thread = threading.Thread(target=Aggregator(store, coder, min_peers=1, timeout=PATIENCE).serve)
    optimizers = [new_peer(store, peer) for peer in range(2)]
    for peer, optimizer in enumerate(optimizers):
        put_frame(store, peer, optimizer)
    thread.start()
    step_all(optimizers, 0)
    for optimizer in optimizers:
        assert isinstance(optimizer.exchange, AggregatorLink)
        optimizer.exchange.leave()
        thread.join(0.1)
        assert thread.is_alive() is (optimizer is optimizers[0])
        if optimizer is optimizers[0]:
            step_all(optimizers[1:], 1)
            assert optimizers[1].peers == (1,)
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_an_aggregator_that_is_started_again_goes_on() -> None:
    optimizers = [DistroAdamW(weights(), **options()) for _ in range(2)]
    for start in (0, 2):
        store = dist.HashStore()
        with serving(store, min_peers=2, steps=start):
            for peer, optimizer in enumerate(optimizers):
                optimizer.exchange = AggregatorLink(store, peer)
            for step in range(start, start + 2):
                step_all(optimizers, step)
    digest = simulate(4, 2, "aggregator").optimizer.parameter_digest()
    assert {optimizer.parameter_digest() for optimizer in optimizers} == {digest}


def test_without_an_aggregator_or_a_donor() -> None:
    peer = new_peer(dist.HashStore(), 0, timeout=0.1)
    with pytest.raises(PeerLost, match="no answer to step 0"):
        step_all([peer], 0)
    with pytest.raises(PeerLost, match="no peer handed over"):
        peer.synchronise()


def test_settings_are_checked() -> None:
    store, coder = dist.HashStore(), DistroAdamW(weights()).coder
    with pytest.raises(SettingsError, match="min_peers = 0"):
        Aggregator(store, coder, min_peers=0)
    with pytest.raises(SettingsError, match=r"timeout = 0"):
        Aggregator(store, coder, timeout=0)
    with pytest.raises(SettingsError, match="peer = -1"):
        AggregatorLink(store, -1)


def test_long_values_travel_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(byte_store, "_PIECE", 10)
    store = ByteStore(dist.HashStore())
    for data in (b"", b"0123456789", bytes(range(256))):
        store.put("key", data)
        assert store.get("key") == data
        store.delete("key")
        assert not store.has("key")
        assert not store.has("key/0")
    store.delete("key")
    assert not store.wait("key", 0.01)


# With real processes


def serve(port: int, min_peers: int) -> str:
    coder = DistroAdamW(weights(), **options()).coder
    Aggregator(connect(port), coder, timeout=4.0, min_peers=min_peers).serve()
    return "done"


def train(port: int, peer: int, dies_at: int = -1, joins: bool = False) -> dict[str, Any]:
    optimizer = new_peer(connect(port), peer, seed=5 if joins else 0, timeout=PATIENCE)
    if joins:
        optimizer.synchronise()
    store, used = connect(port), set[int]()
    while optimizer.steps < 8:
        if optimizer.steps == dies_at:
            die()
        if not joins and optimizer.steps == 4:  # until the new peer has asked for parameters: this step hands them over
            while not store.add("state/wanted", 0):
                time.sleep(0.01)
        if not joins and optimizer.steps == 5:  # until the new peer has sent its first frame
            store.wait(["event/3"], timedelta(seconds=PATIENCE))
        set_gradients(optimizer.parameters, optimizer.steps, peer)
        optimizer.step()
        used |= set(optimizer.peers)
    assert isinstance(optimizer.exchange, AggregatorLink)
    optimizer.exchange.leave()
    return {
        "digest": optimizer.parameter_digest(),
        "chain": optimizer.chain,
        "used": used,
    }


def test_a_killed_peer_does_not_stop_the_others_and_a_new_one_joins(processes: Processes) -> None:
    processes.start(serve, "aggregator", 2)
    peers = [processes.start(train, 0, 0), processes.start(train, 1, 1), processes.start(train, 2, 2, 2)]
    processes.start(train, 3, 3, -1, True)  # asks for parameters at once, and gets them at somebody's next step
    found = processes.results(3)
    assert sorted(found) == [0, 1, 3]
    assert len({(result["digest"], result["chain"]) for result in found.values()}) == 1
    assert {0, 1, 3} <= found[0]["used"]
    peers[2].join(timeout=10)
    assert peers[2].exitcode == -9
