"""Processes are killed while agents are asked: nothing that was called durable is lost or taken
twice. `KVACTORS_KILLS=12` says how often."""

import os
import signal
import threading
from contextlib import suppress
from random import Random
from subprocess import CalledProcessError

import pytest
from nodes import Nodes
from ray.exceptions import RayError
from samples import DAY, FULL
from waiting import eventually

from kvactors.actors.cluster.agents.handle import ClusterAgent
from kvactors.actors.cluster.protocol.errors import TurnLost
from kvactors.actors.cluster.protocol.records import Place
from kvactors.core.schedule.sampling import Sampling

KILLS = int(os.environ.get("KVACTORS_KILLS", 300 if FULL else 10))
AGENTS = 3
SHORT = Sampling(max_tokens=2)
PAUSE = 0.1
"""Seconds between two turns of an agent."""
TURNS = 200
"""Of one agent; then another one is asked."""
MEANWHILE = 4
"""Turns that are durable between two kills."""


class Asking:
    """Somebody who asks an agent something new, now and then, until told to stop; another one when
    it has been asked so much that its context would be full some day."""

    def __init__(self, nodes: Nodes, name: str) -> None:
        self._nodes, self._name = nodes, name
        self.asked: list[tuple[ClusterAgent, list[str]]] = []
        self.done = 0
        self.failed: BaseException | None = None
        self._next()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    @property
    def now(self) -> str:
        """The agent that is asked just now."""
        return self.asked[-1][0].agent_id

    def _next(self) -> None:
        agent = self._nodes.cluster.spawn(f"{self._name}-{len(self.asked)}", group=self._name)
        self.asked.append((agent, []))

    def _ask(self) -> None:
        try:
            while not self._end.wait(PAUSE):
                if len(self.asked[-1][1]) >= TURNS:
                    self._next()
                agent, durable = self.asked[-1]
                text = f"Number {len(durable)}."
                reply = agent.ask(text, sampling=SHORT).get(timeout=120)
                # Answered, and its node was killed before the copy: it is asked anew.
                with suppress(TurnLost):
                    assert reply.durable.get(timeout=120)
                    durable.append(text)
                    self.done += 1
        except BaseException as error:
            self.failed = error

    def end(self) -> None:
        self._end.set()
        self._thread.join()


def _victim(place: Place, rng: Random) -> str:
    """The directory, or who has an agent, or who has its copy."""
    return rng.choice([place.node, place.node, place.replica or place.node, "directory"])


@pytest.mark.slow
@pytest.mark.timeout(7200 if FULL else 300)
def test_killed_at_random_nothing_durable_is_lost_or_taken_twice(three: Nodes) -> None:
    rng = Random(f"{DAY} kills")
    names = [f"hunted-{number}" for number in range(AGENTS)]
    asking = [Asking(three, name) for name in names]
    killed: list[str] = []
    owners: list[Place] = []
    taken_over = 0

    def done() -> int:
        assert not any(one.failed for one in asking), [one.failed for one in asking]
        return sum(one.done for one in asking)

    try:
        while len(killed) < KILLS:
            until = done() + MEANWHILE
            eventually(lambda until=until: done() >= until)  # type: ignore[misc]
            while owners:
                taken_over += three.cluster.place(owners[-1].agent).node != owners.pop().node
            place = three.cluster.place(asking[rng.randrange(AGENTS)].now)
            victim = _victim(place, rng)
            held = victim == place.node and len(killed) % 2 == 0
            # One that is just beginning again is left alone.
            with suppress(ProcessLookupError, RayError, CalledProcessError):
                if held:
                    three.kill_past_lease(victim)
                else:
                    os.kill(three.pid(victim), signal.SIGKILL)
                killed.append(victim)
                owners += [place] * held
    finally:
        for one in asking:
            one.end()

    for one in asking:
        assert one.failed is None
        for agent, durable in one.asked:
            told = [turn.text for turn in agent.transcript().turns if turn.role == "user"]
            assert told == durable
    # Without a copy the killed node would have gone on with its own disk.
    assert taken_over >= KILLS / 10, (taken_over, killed)
    eventually(lambda: len(three.alive()) == 3)
