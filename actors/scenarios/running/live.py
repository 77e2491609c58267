"""The agents of a running system perform steps. The runner's thread; what the system settles on
its threads is put into a queue.

`World` is the queue of all runs of one system, `LiveAgents` the agents of one run: `marco` of the
run `seed-1` is `seed-1/marco` in the store.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, cast

from kvactors.actors.agents.handle import Agent
from kvactors.actors.cluster.agents.handle import ClusterAgent
from kvactors.actors.errors import AgentExists
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.actors.scenarios.files.problems import InvalidScenario
from kvactors.actors.scenarios.running.clustered import ClusterSystem
from kvactors.actors.scenarios.running.lanes import Lane
from kvactors.actors.scenarios.running.outcomes import (
    Failed,
    Happened,
    Outcome,
    Replied,
    spoken,
)
from kvactors.actors.scenarios.running.script import Script
from kvactors.actors.scenarios.running.steps import Step
from kvactors.actors.system.system import AgentSystem
from kvactors.core.errors import (
    AdmissionFull,
    InvalidInput,
    KvactorsError,
    TemplateError,
    TurnError,
)

__all__ = ["LiveAgents", "MemoryMissing", "World"]

# What one step may fail with while the run goes on. All else ends the process's part of the run.
OF_A_STEP = (TurnError, InvalidInput, AdmissionFull, TemplateError)

# Seconds that a turn may take to end that was told to.
LONGEST = 60


class MemoryMissing(KvactorsError):
    """An agent remembers less than the journal says: its store is another one, or was damaged."""


class World:
    """What has ended in one `system`, in the order in which it did."""

    def __init__(self, system: AgentSystem | ClusterSystem) -> None:
        self.system: Any = system
        self._own = self._loaded = system.info.name
        self._fitting: set[str] = set()
        self._lock = threading.Lock()
        self._ended: deque[Callable[[], None]] = deque()
        self._more: ReplyFuture[None] = ReplyFuture()

    def load(self, model: str | None) -> None:
        """Let another model be loaded, or its own again, if it is not."""
        wanted = self._own if model is None else model
        if wanted != self._loaded:
            self.system.swap_model(wanted)
            self._loaded = wanted

    def require_room(self, script: Script) -> None:
        """Raise InvalidScenario for a persona of a `script` that fills the context (a cluster's
        nodes refuse its agent's first turn)."""
        if isinstance(self.system, ClusterSystem):
            return
        info = self.system.info
        for member in script.cast.members.values():
            persona = member.persona or ""
            if persona in self._fitting:
                continue
            tokens = len(info.chat.encode(persona))
            if tokens >= info.spec.context:
                raise InvalidScenario(
                    f"the persona of {member.name} has {tokens:,} tokens, and the context of "
                    f"{info.name} is {info.spec.context:,}"
                )
            self._fitting.add(persona)

    def require_new(self, prefixes: Iterable[str]) -> None:
        """Raise AgentExists if the store has agents of another run by one of these `prefixes`."""
        mine = set(prefixes)
        ids = (known.agent_id for known in self.system.known_agents())
        if found := sorted(id_ for id_ in ids if "/" in id_ and id_.partition("/")[0] in mine):
            raise AgentExists(found[0], "is of an earlier run: take another store, or forget it")

    def put(self, take: Callable[[], None]) -> None:
        """Something is to be taken on the runner's thread. Any thread."""
        with self._lock:
            self._ended.append(take)
            more = self._more
        more.resolve(None)

    def wait(self) -> None:
        """Take what has ended, once there is something."""
        self._more.get()
        with self._lock:
            ended, self._ended = self._ended, deque()
            self._more = ReplyFuture()
        for take in ended:
            take()


class LiveAgents:
    """The agents of one run of a `script` in a `world`. They are called `prefix`/NAME, and begin as
    those of `origin` did, if that is given, but for the `renewed`, who are told again what they had
    heard; `take` is told what came of each step, `clock` says the seconds since the run began and
    since this process took it up."""

    def __init__(
        self,
        world: World,
        script: Script,
        take: Callable[[Step, Outcome], None],
        *,
        prefix: str,
        origin: str | None,
        renewed: frozenset[str],
        clock: Callable[[], tuple[float, float]],
    ) -> None:
        self._world = world
        self._system = world.system
        self._script = script
        self._take = take
        self._prefix = prefix
        self._origin = origin
        self._renewed = renewed
        self._clock = clock
        self._agents: dict[str, Agent | ClusterAgent] = {}
        self._pending: set[ReplyFuture[Any]] = set()
        self._known = {known.agent_id for known in world.system.known_agents()}

    def resume(self, lanes: Iterable[Lane], model: str | None) -> None:
        """Bring agents to where the journal has them: what they were told since is taken back; and
        load the `model` that it has swapped in."""
        self._world.load(model)
        for lane in lanes:
            if lane.open and (lane.memory or lane.origin):
                self._agent(lane)

    def perform(self, lane: Lane | None, step: Step) -> None:
        """Begin a step; its outcome comes by the world's queue."""
        if step.failed is not None:
            self._tell(step, Failed(*step.failed))
        elif step.said is not None:
            self._tell(step, spoken(step.said, self._clock()[1]))
        elif lane is None:
            self._whole(step)
        elif step.kind == "fork":
            self._fork(lane, step)
        else:
            self._ask(lane, step)

    def _whole(self, step: Step) -> None:
        if step.kind == "swap":
            self._world.load(step.detail)
        self._tell(step, Happened(self._clock()[0]))

    def _fork(self, lane: Lane, step: Step) -> None:
        child = self._id(step.detail)
        if child in self._known:
            self._system.forget(child)  # Of a part of the run that was cut off before it was kept.
        self._agents[step.detail] = self._system.spawn(child, from_=self._agent(lane))
        self._tell(step, Happened(self._clock()[0]))

    def _ask(self, lane: Lane, step: Step) -> None:
        begun, call = self._clock()[1], step.call
        assert call is not None
        try:
            agent = self._agent(lane)
            if step.kind == "hear":
                future = agent.observe(call.text)
            else:
                future = agent.ask(call.text, sampling=self._script.sampling(lane.member, step))
        except OF_A_STEP as error:
            self._tell(step, Failed(type(error).__name__, str(error)))
            return
        settled = self._probed if step.kind == "probe" else self._replied
        self._then(future, lambda done: settled(lane, step, done, begun))

    def _then(self, future: ReplyFuture[Any], go_on: Callable[[ReplyFuture[Any]], None]) -> None:
        def take(done: ReplyFuture[Any]) -> None:
            self._pending.discard(future)
            go_on(done)

        self._pending.add(future)
        future.on_done(lambda done: self._world.put(lambda: take(done)))

    def abandon(self) -> None:
        """End what is under way: whoever goes on with this system finds its agents idle, and takes
        back what the journal has not."""
        for agent in self._agents.values() if self._pending else ():
            with suppress(Exception):  # What ended the run may have ended the system.
                agent.cancel()
        for future in self._pending:
            with suppress(Exception):
                future.get(timeout=LONGEST)

    def _replied(self, lane: Lane, step: Step, future: ReplyFuture[Any], begun: float) -> None:
        """It counts once it is in the ledger."""
        reply = self._reply(step, future)
        if reply is not None:
            self._then(reply.durable, lambda done: self._kept(step, done, Replied(reply, begun)))

    def _kept(self, step: Step, durable: ReplyFuture[Any], outcome: Outcome) -> None:
        durable.get()
        self._take(step, outcome)

    def _probed(self, lane: Lane, step: Step, future: ReplyFuture[Any], begun: float) -> None:
        """It leaves no trace."""
        reply = self._reply(step, future)
        if reply is not None:
            rewound = self._agent(lane).rewind()
            self._then(rewound, lambda done: self._kept(step, done, Replied(reply, begun)))

    def _reply(self, step: Step, future: ReplyFuture[Any]) -> Any:
        """The reply, or None where its step failed."""
        if isinstance(future.error, OF_A_STEP):
            self._take(step, Failed(type(future.error).__name__, str(future.error)))
            return None
        return future.get()

    def _tell(self, step: Step, outcome: Outcome) -> None:
        self._world.put(lambda: self._take(step, outcome))

    def _id(self, lane: str) -> str:
        return f"{self._prefix}/{lane}"

    def _agent(self, lane: Lane) -> Agent | ClusterAgent:
        if lane.name not in self._agents:
            self._agents[lane.name] = self._spawned(lane)
        return self._agents[lane.name]

    def _spawned(self, lane: Lane) -> Agent | ClusterAgent:
        """A lane's agent, which remembers what the journal says and nothing else."""
        agent: Agent | ClusterAgent
        agent_id = self._id(lane.name)
        renewed = lane.member.name in self._renewed
        origin = f"{self._origin}/{lane.name}"
        if agent_id in self._known:
            agent = self._system.spawn(agent_id)
            if isinstance(agent, ClusterAgent):
                _end_at(agent, lane.memory)
        elif self._origin is None or renewed or not lane.memory or origin not in self._known:
            agent = self._system.spawn(agent_id, lane.member.persona)
        else:
            agent = self._system.spawn(agent_id, from_=origin)
        remembered = _exchanges(agent)
        if renewed and remembered < len(lane.told):
            for text in lane.told[remembered:]:
                cast(Any, agent.observe(text)).get().durable.get()
            remembered = _exchanges(agent)
        if remembered < lane.memory:
            raise MemoryMissing(
                f"{agent_id} remembers {remembered} exchanges of the {lane.memory} of the journal: "
                "the store is another one, or was damaged"
            )
        if remembered > lane.memory:
            cast(Any, agent.rewind(remembered - lane.memory)).get()
        return agent


def _end_at(agent: ClusterAgent, exchanges: int) -> None:
    """Forget what came after so many `exchanges`, also of a turn that a killed program has left
    running at its owner."""
    agent.cancel()
    kept = tokens = 0
    for turn in agent.transcript().turns:
        kept += not turn.is_answer
        if kept > exchanges:
            break
        tokens += len(turn.token_ids)
    agent.rewind(to_token=tokens).get()


def _exchanges(agent: Agent | ClusterAgent) -> int:
    """How many it remembers."""
    return sum(not turn.is_answer for turn in agent.transcript().turns)
