"""Regimes of waiting: time to the first token, and the gaps of those who decode meanwhile."""

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from kvactors.actors import Agent, AgentSystem, Sampling
from kvactors.bench import peers
from kvactors.bench.disk import drop_from_cache
from kvactors.bench.setup import Setup, answer
from kvactors.bench.table.decoding import token_times
from kvactors.bench.table.regime import Regime

__all__ = ["REGIMES", "Memories", "remembering"]

Pairs = Iterator[tuple[float, float]]
QUESTION = 8
LONG = 16_384
LEAST_CHUNK = 32


class Memories:
    """One agent of `tokens` tokens of the model of `setup` in a store at `folder`, and its time to
    a first token in each state.

    Hot: its KV is in memory. Warm: on disk, in a system started anew, its files dropped from the
    page cache where the system can do that. Cold: the ledger alone, so that all is prefilled.
    """

    def __init__(self, setup: Setup, folder: Path, tokens: int) -> None:
        self._setup, self._folder = setup, folder
        self.prompt = setup.prompt(tokens - 1)
        with self._system("store") as system:
            self._remember(system)

    @contextmanager
    def hot(self) -> Iterator[AgentSystem]:
        """A system in which the agent is hot."""
        with self._system("store") as system:
            self.ask(system)
            yield system

    def ask(self, system: AgentSystem) -> tuple[float, str]:
        """Seconds to the first token of a question, and the state it began in; taken back."""
        agent = system.spawn("reader")
        reply = answer(agent, list(range(1, QUESTION + 1)))
        reply.cached.get()
        agent.rewind().get()
        return reply.timing.first_token, reply.cache

    def cold(self) -> float:
        """Seconds to the first token where only the ledger is left."""
        shutil.copytree(self._folder / "store" / "agents", self._folder / "bare" / "agents")
        found = self._once("bare", "cold")
        shutil.rmtree(self._folder / "bare")
        return found

    def warm(self) -> float:
        """Seconds to the first token where its KV is on disk."""
        shutil.copytree(self._folder / "store", self._folder / "spare")
        for path in (self._folder / "spare").rglob("*.*"):
            drop_from_cache(path)
        found = self._once("spare", "warm")
        shutil.rmtree(self._folder / "spare")
        return found

    def _once(self, store: str, state: str) -> float:
        with self._system(store) as system:
            # The first turn of a process also pays for kernels and buffers.
            answer(system.spawn("first"), [1] * 64)
            seconds, found = self.ask(system)
        assert found == state, f"the agent is {found}, not {state}"
        return seconds

    def _remember(self, system: AgentSystem) -> None:
        answer(system.spawn("reader"), self.prompt).cached.get()

    def _system(self, store: str) -> AgentSystem:
        return self._setup.system(store=self._folder / store)


@contextmanager
def remembering(setup: Setup, tokens: int) -> Iterator[Memories]:
    """Memories of so many tokens, in a temporary folder."""
    with TemporaryDirectory(prefix="kvactors-bench-") as folder:
        yield Memories(setup, Path(folder), tokens)


def _memories(setup: Setup) -> AbstractContextManager[Memories]:
    return remembering(setup, setup.scale.tokens(LONG))


def hot(setup: Setup) -> Pairs:
    """Time to the first token of a question of 8 tokens to an agent of 16,384 in memory, through
    AgentSystem, against one bare forward of as many new tokens over the same cache."""
    with _memories(setup) as memories, memories.hot() as system:
        bare = peers.Bare(setup.loaded, memories.prompt)
        while True:
            ours, state = memories.ask(system)
            assert state == "hot"
            yield ours, bare.forward(range(1, QUESTION + 2))


def cold_over_hot(setup: Setup) -> Pairs:
    """Time to the first token of an agent of 16,384 tokens that is cold, over one that is hot."""
    with _memories(setup) as memories, memories.hot() as system:
        while True:
            cold = memories.cold()
            yield cold, memories.ask(system)[0]


def cold_over_warm(setup: Setup) -> Pairs:
    """Time to the first token of an agent of 16,384 tokens that is cold, over one whose KV is on
    disk, in a new system, out of the page cache where the system can drop it."""
    with _memories(setup) as memories:
        while True:
            yield memories.cold(), memories.warm()


class _Staggered:
    """Two agents of 4,096 tokens; B asks when a third of A's prefill is over."""

    def __init__(self, setup: Setup) -> None:
        self._prompts = [setup.prompt(setup.scale.tokens(4096), seed) for seed in (1, 2)]
        self._system = setup.system(progress=self._progress)
        self._third = threading.Event()

    def _progress(self, agent_id: str, done: int, total: int) -> None:
        if agent_id == "A" and 3 * done >= total:
            self._third.set()

    @contextmanager
    def running(self) -> Iterator["_Staggered"]:
        with self._system as system:
            answer(system.spawn("first"), self._prompts[0][:64])
            yield self

    def alone(self) -> tuple[float, float]:
        """Times to the first token of A and of B, one after the other."""
        found = []
        for name, prompt in zip("AB", self._prompts, strict=True):
            found.append(answer(self._system.spawn(name), prompt).timing.first_token)
            self._system.forget(name)
        return found[0], found[1]

    def together(self) -> tuple[float, float, float]:
        """Times to the first token of A and of B, and how long after A B came."""
        one = Sampling(max_tokens=1)
        self._third.clear()
        begin = time.perf_counter()
        first = self._system.spawn("A").ask(self._prompts[0], sampling=one)
        self._third.wait()
        late = time.perf_counter() - begin
        second = self._system.spawn("B").ask(self._prompts[1], sampling=one)
        found = first.get().timing.first_token, second.get().timing.first_token
        for name in "AB":
            self._system.forget(name)
        return *found, late


def staggered_second(setup: Setup) -> Pairs:
    """B (4,096 tokens) arrives when a third of A's prefill (4,096) is over: B's time to the first
    token, against both prefills back to back, counted from B's arrival."""
    with _Staggered(setup).running() as pair:
        while True:
            alone = sum(pair.alone())
            _, second, late = pair.together()
            yield second, alone - late


def staggered_first(setup: Setup) -> Pairs:
    """The same: A's time to the first token, against A alone."""
    with _Staggered(setup).running() as pair:
        while True:
            alone, _ = pair.alone()
            yield pair.together()[0], alone


def gap(setup: Setup) -> Pairs:
    """The 99th percentile of the gaps between an agent's tokens (500 in memory) while another
    agent prefills 8,192 tokens, against that of its gaps alone. The target is 4 gaps, or a step
    and one chunk of 32 tokens at that depth, whichever is longer."""
    prompt = setup.prompt(setup.scale.tokens(8192))
    with setup.system() as system:
        decoder = system.spawn("decoder")
        answer(decoder, setup.prompt(setup.scale.tokens(500)))
        while True:
            alone = token_times(decoder, [1], setup.scale.decoded + 2)[1:]
            decoder.rewind().get()
            disturbed = _disturbed(decoder, system.spawn("reader"), prompt)
            decoder.rewind().get()
            system.forget("reader")
            yield _p99(disturbed), _p99(alone)


def _disturbed(decoder: Agent, reader: Agent, prompt: list[int]) -> list[float]:
    """Token times of the decoder until the reader has its first token."""
    with decoder.stream([1], sampling=Sampling(max_tokens=8192)) as stream:
        next(stream)
        future = reader.ask(prompt, sampling=Sampling(max_tokens=1))
        times = []
        for _ in stream:
            times.append(time.perf_counter())
            if future.done:
                break
    assert stream.reply.finish_reason == "cancelled"
    return times


def _p99(times: list[float]) -> float:
    return float(np.percentile(np.diff(times), 99))


def gap_target(setup: Setup) -> float:
    """A step and one chunk of 32 tokens at 8,192, in steps; at least 4."""
    long = setup.prompt(setup.scale.tokens(8192))
    chunk = peers.Bare(setup.loaded, long[:-LEAST_CHUNK]).forward(long[-LEAST_CHUNK:])
    bare = peers.Bare(setup.loaded, setup.prompt(setup.scale.tokens(500)))
    step = bare.step(setup.scale.decoded)
    return max(4.0, (step + chunk) / step)


REGIMES = (
    Regime("hot-16k", "bare forward of the same tokens over the same cache", 1.1, hot),
    Regime("cold/hot-16k", "[paper, 4.2]: 81.6", 150, cold_over_hot, "higher"),
    Regime("cold/warm-16k", "[paper, 4.2]: 10.5", 100, cold_over_warm, "higher"),
    Regime("staggered-ttft-b", "both prefills back to back", 1.1, staggered_second),
    Regime("staggered-ttft-a", "A alone", 1.04, staggered_first),
    Regime("gap-p99-during-8k", "its gap alone", gap_target, gap),
)
