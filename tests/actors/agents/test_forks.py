"""Forks of an agent that is busy: with what it has said so far, at once or when it is done."""

import os
import signal
import threading
from contextlib import suppress

import pytest
from makers import OpenSystem

from kvactors.actors import AgentExists, Sampling
from kvactors.actors.testing import FaultyModel, HoldingFiles

WAIT = 60
SHORT = Sampling(max_tokens=4)


def test_a_fork_that_does_not_wait_has_all_but_the_turn_that_runs(open_system: OpenSystem) -> None:
    model = FaultyModel()
    system = open_system(model)
    alice = system.spawn("alice")
    alice.ask("one", sampling=SHORT).get(timeout=WAIT)
    before = alice.transcript().token_ids
    gate = model.hold()
    running = alice.ask("two", sampling=SHORT)
    assert model.reached.wait(WAIT)

    bob = system.spawn("bob", from_=alice, wait=False)

    assert not running.done
    assert bob.transcript().token_ids == before
    gate.set()
    running.get(timeout=WAIT)
    said = bob.ask("three", sampling=SHORT).get(timeout=WAIT)
    assert said.usage.reused_tokens == len(before) - 1
    late = system.spawn("late", from_=alice)
    assert late.transcript().token_ids == alice.transcript().token_ids


def test_a_fork_that_did_not_wait_is_stored_without_the_turn_that_ran(
    open_system: OpenSystem,
) -> None:
    model = FaultyModel()
    system = open_system(model)
    alice = system.spawn("alice")
    alice.ask("one", sampling=SHORT).get(timeout=WAIT).cached.get(timeout=WAIT)
    before = alice.transcript().token_ids
    gate = model.hold()
    running = alice.ask("two", sampling=SHORT)
    assert model.reached.wait(WAIT)
    system.spawn("bob", from_=alice, wait=False)
    gate.set()
    running.get(timeout=WAIT)
    system.stop(timeout=WAIT)

    again = open_system(FaultyModel()).spawn("bob")

    assert again.transcript().token_ids == before
    said = again.ask("three", sampling=SHORT).get(timeout=WAIT)
    assert (said.cache, said.usage.reused_tokens) == ("warm", len(before) - 1)


def test_whose_fork_was_interrupted_is_nobody_until_nothing_is_left_of_it(
    open_system: OpenSystem,
) -> None:
    disk = HoldingFiles(name="write_temp", path="*bob*ledger*")
    system = open_system(disk=disk)
    alice = system.spawn("alice")
    alice.ask("one", sampling=SHORT).get(timeout=WAIT).durable.get(timeout=WAIT)

    def interrupt() -> None:
        assert disk.reached.wait(WAIT)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        system.spawn("bob", from_=alice)
    with pytest.raises(AgentExists, match="just being made"):
        system.spawn("bob")
    disk.release.set()

    bob = None
    while bob is None:
        with suppress(AgentExists):
            bob = system.spawn("bob")
    assert not bob.transcript().turns
    bob.ask("two", sampling=SHORT).get(timeout=WAIT).durable.get(timeout=WAIT)
    system.stop(timeout=WAIT)
    assert len(open_system().spawn("bob").transcript().turns) == len(bob.transcript().turns)
