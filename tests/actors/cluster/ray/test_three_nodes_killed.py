"""Processes are killed while agents are asked: nothing that was called durable is lost or taken
twice."""

import os
import signal
import threading
from contextlib import suppress
from random import Random

import pytest
from nodes import Nodes
from ray.exceptions import RayError
from samples import DAY, FULL
from waiting import eventually

from kvactors.actors.cluster.agents.handle import ClusterAgent
from kvactors.actors.cluster.protocol.errors import TurnLost
from kvactors.core.schedule.sampling import Sampling

KILLS = 300 if FULL else 10
AGENTS = 3
SHORT = Sampling(max_tokens=2)
MEANWHILE = 4
"""Turns that are durable between two kills."""


class Asking:
    """Somebody who asks one agent something new until told to stop."""

    def __init__(self, agent: ClusterAgent) -> None:
        self.agent = agent
        self.durable: list[str] = []
        self.failed: BaseException | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        try:
            while not self._end.is_set():
                text = f"Number {len(self.durable)}."
                reply = self.agent.ask(text, sampling=SHORT).get(timeout=120)
                # Answered, and its node was killed before the copy: it is asked anew.
                with suppress(TurnLost):
                    assert reply.durable.get(timeout=120)
                    self.durable.append(text)
        except BaseException as error:
            self.failed = error

    def end(self) -> None:
        self._end.set()
        self._thread.join()


def _victim(nodes: Nodes, rng: Random) -> str:
    """The directory, or who has an agent, or who has its copy."""
    place = nodes.cluster.place(f"hunted-{rng.randrange(AGENTS)}")
    return rng.choice([place.node, place.node, place.replica or place.node, "directory"])


@pytest.mark.timeout(3600 if FULL else 300)
def test_killed_at_random_nothing_durable_is_lost_or_taken_twice(three: Nodes) -> None:
    rng = Random(f"{DAY} kills")
    names = [f"hunted-{number}" for number in range(AGENTS)]
    asking = [Asking(three.cluster.spawn(name, group=name)) for name in names]
    killed: list[str] = []

    def done() -> int:
        assert not any(one.failed for one in asking), [one.failed for one in asking]
        return sum(len(one.durable) for one in asking)

    try:
        while len(killed) < KILLS:
            until = done() + MEANWHILE
            eventually(lambda until=until: done() >= until)  # type: ignore[misc]
            victim = _victim(three, rng)
            # One that is just beginning again is left alone.
            with suppress(ProcessLookupError, RayError):
                os.kill(three.pid(victim), signal.SIGKILL)
                killed.append(victim)
    finally:
        for one in asking:
            one.end()

    for one in asking:
        assert one.failed is None
        told = [turn.text for turn in one.agent.transcript().turns if turn.role == "user"]
        assert told == one.durable
    eventually(lambda: len(three.alive()) == 3)
