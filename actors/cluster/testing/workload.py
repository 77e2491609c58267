"""What clients do meanwhile, and the end of it: everything is answered, and all is in its place."""

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any

from kvactors.actors.cluster.protocol.client import Client, forget
from kvactors.actors.cluster.protocol.errors import (
    ClusterError,
    ForkLost,
    HostFailed,
    TurnLost,
    Unanswered,
)
from kvactors.actors.cluster.protocol.records import Settings
from kvactors.actors.cluster.testing.faults import plan
from kvactors.actors.cluster.testing.machines.host import texts, withdrawn
from kvactors.actors.cluster.testing.oracle import Asked
from kvactors.actors.cluster.testing.quiet import journal_of, quiet
from kvactors.actors.cluster.testing.restored import Restored
from kvactors.actors.cluster.testing.world import World

__all__ = ["Outcome", "run_seed"]

FAULTS = 16.0
PATIENCE = 90.0
LEASE = 2.0
MOST_AGENTS = 7
WRITERS = 2


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one seed."""

    seed: int
    broken: list[str]
    answers: int
    log: list[str]
    letters: Counter[str]
    """What became of messages."""
    reached: Counter[str]
    """How often processes came to each step."""
    struck: Counter[str]
    """How often each fault struck, and at which steps."""


def run_seed(seed: int, durable: str = "two", *, restored: bool = False) -> Outcome:
    """The whole story of a `seed`, with turns `durable` on "one" node or "two", over empty stores
    or such as were `restored`."""
    settings = Settings(lease=LEASE, call=0.5, durable=durable, served=2)
    world = World(seed, _nodes(seed), settings)
    try:
        story = _Story(world)
        world.loop.run_until_complete(
            _over(story, Restored(world, seed)) if restored else story.told()
        )
    except RuntimeError as error:
        world.oracle.broken.append(str(error))
    finally:
        world.close()
    return Outcome(
        seed,
        world.oracle.broken,
        world.oracle.answers,
        world.log,
        world.letters.counts,
        world.steps.reached,
        world.steps.struck,
    )


async def _over(story: "_Story", restored: Restored) -> None:
    await restored.begins()
    await story.told()
    await restored.ends()


def _nodes(seed: int) -> int:
    return (2, 3, 3, 4)[seed % 4]


class _Story:
    def __init__(self, world: World) -> None:
        self._world, self._rng, self._oracle = world, world.rng, world.oracle
        self._agents = world.agents
        self._agents += [f"a{index}" for index in range(self._rng.randint(1, 4))]
        self._drained: set[str] = set()
        self._forgotten: list[str] = []
        self._moves: list[tuple[str, str, int]] = []

    async def told(self) -> None:
        """From the first spawn to the last check."""
        healed = self._world.loop.time() + FAULTS
        self._world.loop.call_at(healed, self._world.heal)
        self._world.loop.call_later(0.5, plan, self._world, FAULTS - 1.5)
        clients = [self._client(f"c{index}") for index in range(self._rng.randint(2, 4))]
        writers = [self._writer(f"w{index}") for index in range(WRITERS)]
        operator = self._operator(self._world.client("operator"))
        await asyncio.gather(*clients, operator, *writers)
        await asyncio.sleep(max(0.0, healed - self._world.loop.time()))
        await quiet(self._world, self._drained, self._forgotten)
        for agent, target, written in self._moves:
            self._oracle.moved(agent, target, journal_of(self._world)[written:])

    async def _client(self, name: str) -> None:
        client = self._world.client(name)
        for agent in list(self._agents):
            await self._until_done(lambda agent=agent: client.spawn(agent, {}, None, PATIENCE))
        for number in range(self._rng.randint(4, 20)):
            await asyncio.sleep(self._rng.choice([0.01, 0.3, 1.0, 3.0]) * self._rng.random())
            agent = self._rng.choice(self._agents)
            try:
                await self._act(client, agent, f"{name}.{number}")
            except Unanswered as error:
                self._oracle.unanswered(agent, f"{name}.{number}", str(error))
            except ForkLost as error:
                self._oracle.never_began(agent, str(error))

    async def _act(self, client: Client, agent: str, text: str) -> None:
        draw = self._rng.random()
        if draw < 0.25:
            await self._read(client, agent)
        elif draw < 0.35:
            await self._cancel(client, agent, text)
        elif draw < 0.42 and len(self._agents) < MOST_AGENTS:
            await self._fork(client, agent, text)
        elif draw < 0.48:
            await self._pass_through(client, f"x-{text}")
        elif draw < 0.52:
            await self._until_done(lambda: client.running(agent, PATIENCE))
            await self._until_done(lambda: client.serve(agent, PATIENCE))
        else:
            await self._turn(client, agent, text, self._rng.choice([None] * 6 + [1, 2]))

    async def _turn(self, client: Client, agent: str, text: str, rewinds: int | None) -> None:
        """Or, if it `rewinds` so many, that."""
        asked = self._oracle.asks(agent, text, rewinds=rewinds)
        request: dict[str, Any] = {"id": f"r-{text}", "text": text}
        if rewinds is not None:
            request |= {"kind": "rewind", "rewinds": rewinds}
        try:
            if self._rng.random() < 0.4:
                await self._until_done(lambda: self._streamed(client, asked, request))
            else:
                given = await self._until_done(lambda: client.turn(agent, request, PATIENCE))
                self._answered(asked, given)
                await self._made_durable(client, asked, given)
        except TurnLost:
            self._world.say(f"{text} lost before it was durable")

    async def _streamed(self, client: Client, asked: Asked, request: dict[str, Any]) -> None:
        given: dict[str, Any] = {}
        async for item in client.stream(asked.agent, request, PATIENCE):
            if "answer" in item:
                given = item
                self._answered(asked, item)
            elif "durable" in item:
                await self._made_durable(client, asked, {**given, **item})

    def _answered(self, asked: Asked, given: dict[str, Any]) -> None:
        answer = given["answer"]
        self._world.say(f"{asked.agent} {asked.text}: {given}")
        self._oracle.answered(asked, given["epoch"], given["node"], answer["index"], answer["text"])

    async def _made_durable(self, client: Client, asked: Asked, given: dict[str, Any]) -> None:
        durable = given["durable"]
        while not durable:
            await asyncio.sleep(0.5)
            durable = await self._until_done(
                lambda: client.confirm(asked.agent, f"r-{asked.text}", PATIENCE)
            )
        if self._rng.random() < 0.15:
            request = f"r-{asked.text}"
            await self._until_done(lambda: client.cached(asked.agent, request, PATIENCE))
        answer = given["answer"]
        self._oracle.durable(asked, answer["index"], answer["text"], answer["remembers"])

    async def _cancel(self, client: Client, agent: str, text: str) -> None:
        """Ask, and think better of it: it is taken, or never will be."""
        request = {"id": f"r-{text}", "text": text}
        asked = self._oracle.asks(agent, text, withdrawn=withdrawn(request["id"]))
        turn = asyncio.ensure_future(
            self._until_done(lambda: client.turn(agent, request, PATIENCE))
        )
        await asyncio.sleep(self._rng.choice([0.0, 0.02, 0.1, 2.0]) * self._rng.random())
        given: dict[str, Any] = {"durable": None}
        while not given["durable"]:
            given = await self._until_done(lambda: client.cancel(agent, request["id"], PATIENCE))
            self._answered(asked, given)
            await asyncio.sleep(0.0 if given["durable"] else 0.5)
        await self._made_durable(client, asked, given)
        self._answered(asked, await turn)

    async def _fork(self, client: Client, agent: str, text: str) -> None:
        child = f"{agent}-{text}"
        # What its parent has noted where it had no turn yet.
        asked = self._oracle.asks(agent, text, withdrawn=withdrawn(text))
        try:
            durable = await self._until_done(lambda: client.fork(agent, child, text, PATIENCE))
        except ForkLost:
            self._world.say(f"{child} lost before it had begun")
            return
        shown = self._oracle.asks(child)
        given = await self._until_done(lambda: client.read(child, 0, PATIENCE))
        ledger = texts(given["records"])
        self._world.say(f"{child} begins with {len(ledger)} of {agent}, durable: {durable}")
        self._oracle.read(shown, given["epoch"], given["node"], ledger)
        self._oracle.forked(asked, child, ledger, durable=durable)
        self._agents.append(child)

    async def _pass_through(self, client: Client, agent: str) -> None:
        """One that is forgotten again. Nobody else asks it."""
        await self._until_done(lambda: client.spawn(agent, {}, None, PATIENCE))
        if self._rng.random() < 0.7:
            await self._turn(client, agent, f"{agent}.0", None)
        await self._until_done(lambda: forget(client, agent, PATIENCE))
        self._world.say(f"{agent} is forgotten")
        self._forgotten.append(agent)

    async def _read(self, client: Client, agent: str) -> None:
        asked = self._oracle.asks(agent, "a read")
        given = await self._until_done(lambda: client.read(agent, 0, PATIENCE))
        shown = texts(given["records"])
        self._world.say(f"{agent} shows {len(shown)} in {given['epoch']} on {given['node']}")
        self._oracle.read(asked, given["epoch"], given["node"], shown)

    async def _writer(self, name: str) -> None:
        """Messages from outside, some at a time."""
        world, rng = self._world, self._world.mail_rng
        post, life = world.post(name), world.letters.begins(None, name, lambda: False)
        await asyncio.sleep(0.3)
        for _ in range(rng.randint(3, 6)):
            await asyncio.sleep(rng.choice([0.05, 0.5, 5.0]) * rng.random())
            to, generations = rng.choice(self._agents), rng.choice([0, 1, 2])
            for _ in range(rng.choice([1, 1, 2, 6])):
                if rng.random() < 0.3:
                    asking = post.asks(life, to, generations, None)
                    world.loop.create_task(asking)
                else:
                    post.sends(life, to, generations)

    async def _until_done(self, do: Any) -> Any:
        """A disk's error is the caller's to try again; it is the same request."""
        while True:
            try:
                return await do()
            except HostFailed as error:
                if error.fields["kind"] != "OSError":
                    self._oracle.broken.append(f"a client met {error}")
                    return await asyncio.get_running_loop().create_future()
                if self._world.loop.time() > FAULTS + PATIENCE:
                    raise
                await asyncio.sleep(0.3)

    async def _operator(self, client: Client) -> None:
        for _ in range(self._rng.choice([0, 1, 3])):
            await asyncio.sleep(self._rng.uniform(0.3, 5.0))
            try:
                await self._operate(client)
            except ClusterError as error:
                self._world.say(f"operator: {error}")

    async def _operate(self, client: Client) -> None:
        node, agent = self._rng.choice(self._world.nodes), self._rng.choice(self._agents)
        if self._rng.random() < 0.75:
            self._world.say(f"move {agent} to {node}")
            written = len(journal_of(self._world))
            await client.ask("move", {"agent": agent, "target": node}, PATIENCE)
            self._moves.append((agent, node, written))
            if self._rng.random() < 0.5:
                await self._moved(client, agent)
        elif len(self._world.nodes) > 2 and not self._drained:
            self._world.say(f"drain {node}")
            self._drained.add(node)
            await client.ask("drain", {"node": node, "on": True}, PATIENCE)

    async def _moved(self, client: Client, agent: str) -> None:
        """Until its move is over, or another one that was asked for since."""
        while not (await client.ask("moved", {"agent": agent}, PATIENCE))["over"]:
            pass
