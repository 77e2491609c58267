"""Regimes of what HTTP adds to a turn: to its first token, to its rate, beside a crowd."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from statistics import median
from time import perf_counter

from kvactors.actors import Agent, Sampling
from kvactors.bench.peer_process import in_another_process
from kvactors.bench.random_model import paced_llama
from kvactors.bench.regime import NOTHING_DECODED, Regime, Side, Sides
from kvactors.bench.serve.client import Answer, together
from kvactors.bench.serve.clients import Client, Request, opencode
from kvactors.bench.serve.crowd import crowd
from kvactors.bench.serve.setting import Scene, scene, spoken, text
from kvactors.bench.setup import ENDLESS, Setup

__all__ = ["REGIMES"]

ALLOWED = 0.005
STREAMS = 16
WAITING = 500
REFUSED = 2000.0
TURNS = 16
# Seconds.
FORWARD = 0.02


class _Talk:
    """A conversation over HTTP that goes on from one measurement to the next."""

    def __init__(self, setup: Setup, scene: Scene, client: Client) -> None:
        self._setup, self._scene, self._client = setup, scene, client
        self._said = list[str]()

    def next(self, says: str, decoded: int) -> Request:
        """What is asked now."""
        self._said.append(says)
        return self._client.request(self._said, decoded)

    def heard(self, answer: Answer) -> None:
        """What was answered."""
        self._said.append(answer.text)


def _ask_all(scene: Scene, talks: Sequence[_Talk], says: Sequence[str], decoded: int) -> Side:
    """Seconds of a turn of all talks at once, and what was answered."""
    requests = [talk.next(said, decoded) for talk, said in zip(talks, says, strict=True)]
    seconds, answers = scene.clients(together, scene.url, requests)
    for talk, answer in zip(talks, answers, strict=True):
        talk.heard(answer)
    return Side(seconds, spoken(answers))


@contextmanager
def first_token(setup: Setup) -> Iterator[Sides]:
    """Seconds from a request of an agent of 1,000 tokens in memory to the first text at the client,
    beyond those of `stream` of such an agent in the same process, the median of 16 pairs of turns
    of 16 new tokens; against 5 ms."""
    said = text(setup, setup.scale.tokens(1000), 0)
    turns, seeds = setup.scale.number(TURNS), count(1)
    with scene(setup) as here:
        talk, agent = _Talk(setup, here, opencode("one", said)), here.system.spawn("inside", said)

        def inside(says: str) -> float:
            begin = perf_counter()
            with agent.stream(says, sampling=Sampling(max_tokens=2)) as stream:
                next(piece for piece in stream if piece.text)
                seconds = perf_counter() - begin
                assert stream.reply.token_ids, "a turn that is left would end beside the next one"
            return seconds

        def once() -> float:
            says = text(setup, 16, next(seeds))
            _, (answer,) = here.clients(together, here.url, [talk.next(says, 2)])
            talk.heard(answer)
            return float(answer.first) - inside(says)

        once()
        yield (
            lambda: Side(median(once() for _ in range(turns))),
            lambda: Side(ALLOWED),
        )


@contextmanager
def streams(setup: Setup) -> Iterator[Sides]:
    """Tokens a second of 16 conversations that stream at once over HTTP, from the first request to
    the last end, against the same turns of 16 agents that are streamed under asyncio in the same
    process: 16 new tokens behind 200 and the turns before, all in memory."""
    beginnings = [text(setup, setup.scale.tokens(200), 100 + i) for i in range(STREAMS)]
    decoded = setup.scale.decoded
    seeds = {"ours": count(1), "theirs": count(1)}
    with scene(setup, max_batch=STREAMS) as here:
        talks = [_Talk(setup, here, opencode(f"{i}", said)) for i, said in enumerate(beginnings)]
        agents = [
            here.system.spawn(f"inside {i}", system_prompt=said)
            for i, said in enumerate(beginnings)
        ]

        def says(whose: str) -> list[str]:
            turn = next(seeds[whose])
            return [text(setup, 16, turn * STREAMS + i) for i in range(STREAMS)]

        def ours() -> Side:
            found = _ask_all(here, talks, says("ours"), decoded)
            return Side(STREAMS * decoded / found.value, found.tokens)

        def theirs() -> Side:
            asked, begin = says("theirs"), perf_counter()
            texts = asyncio.run(_streamed(agents, asked, decoded))
            seconds = perf_counter() - begin
            tokens = [ord(character) for text in texts for character in text.lstrip()]
            return Side(STREAMS * decoded / seconds, tokens)

        ours()
        theirs()
        yield ours, theirs


async def _streamed(agents: Sequence[Agent], says: Sequence[str], decoded: int) -> list[str]:
    """What agents answer that are all streamed at once."""

    async def read(agent: Agent, said: str) -> str:
        async with agent.stream_async(said, sampling=Sampling(max_tokens=decoded)) as stream:
            return "".join([piece.text async for piece in stream])

    return await asyncio.gather(*(read(a, said) for a, said in zip(agents, says, strict=True)))


@contextmanager
def beside_a_crowd(setup: Setup) -> Iterator[Sides]:
    """The slowest of 4 turns of 32 tokens, one after the other, over HTTP while 500 streams wait
    for an agent that answers another and 2,000 requests a second are refused, or as many as the
    machine gives, against the slowest of 4 beside that agent alone."""
    client = opencode("one", text(setup, setup.scale.tokens(1000), 0))
    decoded, turns = min(32, setup.scale.decoded), 4
    names, seeds = count(), count(1)
    with scene(setup) as here, in_another_process(crowd) as others:

        def turn(talk: _Talk) -> float:
            return _ask_all(here, [talk], [text(setup, 16, next(seeds))], decoded).value

        def slowest(*, crowded: bool) -> Side:
            talk, name = _Talk(setup, here, client), f"busy {next(names)}"
            # A client's own: nobody waits for an agent of the program.
            here.clients(together, here.url, [Request("/agents", {"id": name})])
            busy = here.system.spawn(name)
            pending = busy.ask([1], sampling=ENDLESS)
            if crowded:
                others(here.url, _waiting(name, setup.scale.number(WAITING)), REFUSED)
            # The first one begins anew.
            seconds = [turn(talk) for _ in range(turns + 1)][1:]
            assert not pending.done, "the agent that all wait for has ended"
            if crowded:
                print(f"  {others():.0f} requests a second were refused", flush=True)
            busy.cancel()
            pending.get()
            return Side(max(seconds))

        slowest(crowded=False)
        yield lambda: slowest(crowded=True), lambda: slowest(crowded=False)


@contextmanager
def paced_beside_a_crowd(setup: Setup) -> Iterator[Sides]:
    """The same with a small model whose forwards take 20 ms and leave the processor alone, as a
    GPU's do: the clients of the crowd take none of it from them."""
    with beside_a_crowd(replace(setup, source=partial(paced_llama, FORWARD))) as sides:
        yield sides


def _waiting(name: str, several: int) -> tuple[Request, ...]:
    """What so many clients ask an agent: the same, so that they wait for the same turn."""
    said = [{"role": "user", "content": "wait"}]
    body = {"messages": said, "max_tokens": 1, "stream": True}
    headers = {"X-Kvactors-Agent": name}
    return (Request("/v1/chat/completions", body, headers),) * several


REGIMES = (
    Regime("serve-first-token", "5 ms", 1.0, first_token, differ=NOTHING_DECODED),
    Regime(
        "serve-16-streams",
        "the same streams in process",
        0.95,
        streams,
        "higher",
        "tokens/s",
        differ="prompts that arrive otherwise are prefilled beside others: sums have another order",
    ),
    Regime("serve-idle", "without a crowd", 1.1, beside_a_crowd, differ=NOTHING_DECODED),
    Regime(
        "serve-idle-paced", "without a crowd", 1.1, paced_beside_a_crowd, differ=NOTHING_DECODED
    ),
)
