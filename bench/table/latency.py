"""Regimes of waiting: time to the first token, of one agent and of two that share the machine."""

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from kvactors.actors import AgentSystem, Reply
from kvactors.bench import peers
from kvactors.bench.disk import drop_from_cache, raw_read, raw_write
from kvactors.bench.regime import Regime, Side, Sides
from kvactors.bench.setup import FIRST, Setup, answer

__all__ = ["QUESTION", "REGIMES", "Memories", "remembering"]

QUESTION = list(range(1, 9))
LONG = 16_384


def questions(setup: Setup) -> Iterator[list[int]]:
    """As long as QUESTION, and another one each time: the KV of what was asked before may be there
    though it was taken back, and then nothing of it is prefilled."""
    return (setup.prompt(len(QUESTION), seed) for seed in count(1))


class Memories:
    """One agent of `tokens` tokens of the model of `setup` in a store at `folder`, and its time to
    a first token in each state.

    Hot: its KV is in memory. Warm: on disk, in a system started anew, its files dropped from the
    page cache where the system can do that. Cold: the ledger alone, so that all is prefilled.
    """

    def __init__(self, setup: Setup, folder: Path, tokens: int) -> None:
        self._setup, self._folder = setup, folder
        self.prompt = setup.prompt(tokens - 1)
        # Of each state the same ones, in order.
        self._questions = {state: questions(setup) for state in ("hot", "warm", "cold")}
        with self._system("store") as system:
            self._remember(system)

    @contextmanager
    def hot(self) -> Iterator[AgentSystem]:
        """A system in which the agent is hot."""
        with self._system("store") as system:
            self.reply(system, "warm", question=QUESTION)
            yield system

    def ask(self, system: AgentSystem, state: str = "hot") -> Side:
        """Seconds to the first token of a question that begins in this `state`; taken back."""
        reply = self.reply(system, state)
        return Side(reply.timing.first_token, reply.token_ids)

    def reply(
        self,
        system: AgentSystem,
        state: str = "hot",
        tokens: int = 1,
        question: list[int] | None = None,
    ) -> Reply:
        """The answer of so many `tokens` of the agent of `system`, which is in this `state`, to a
        `question`, or to the next one; taken back."""
        agent = system.spawn("reader")
        reply = answer(agent, question or next(self._questions[state]), tokens)
        reply.cached.get()
        # Who copies the ledger is not to find this turn in it.
        agent.rewind().get().durable.get()
        assert reply.cache == state, f"the agent is {reply.cache}, not {state}"
        assert reply.usage.prefilled_tokens >= len(QUESTION), "the question was there already"
        return reply

    def cold(self) -> Side:
        """Seconds to the first token where only the ledger is left."""
        reply = self.cold_reply()
        return Side(reply.timing.first_token, reply.token_ids)

    def cold_reply(self, tokens: int = 1) -> Reply:
        """The answer of so many tokens where only the ledger is left."""
        shutil.copytree(self._folder / "store" / "agents", self._folder / "bare" / "agents")
        found = self._once("bare", "cold", tokens)
        shutil.rmtree(self._folder / "bare")
        return found

    def warm(self) -> Side:
        """Seconds to the first token where its KV is on disk."""
        reply = self.warm_reply()
        return Side(reply.timing.first_token, reply.token_ids)

    def warm_reply(self, tokens: int = 1) -> Reply:
        """The answer of so many tokens where the KV is on disk."""
        shutil.copytree(self._folder / "store", self._folder / "spare")
        for path in (self._folder / "spare").rglob("*.*"):
            drop_from_cache(path)
        found = self._once("spare", "warm", tokens)
        shutil.rmtree(self._folder / "spare")
        return found

    def kv_bytes(self) -> int:
        """What the agent's KV takes on disk."""
        files = (self._folder / "store" / "kv").rglob("*.*")
        return sum(path.stat().st_size for path in files)

    def _once(self, store: str, state: str, tokens: int) -> Reply:
        with self._system(store) as system:
            # The first turn of a process also pays for kernels and buffers.
            answer(system.spawn("first"), [1] * 64)
            return self.reply(system, state, tokens)

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


@contextmanager
def hot(setup: Setup) -> Iterator[Sides]:
    """Time to the first token of a question of 8 tokens to an agent of 16,384 in memory, through
    AgentSystem, against one bare forward of as many new tokens over the same cache."""
    with _memories(setup) as memories, memories.hot() as system:
        bare, asked = peers.Bare(setup.loaded, memories.prompt), questions(setup)
        yield lambda: memories.ask(system), lambda: Side(*bare.forward(next(asked)))


@contextmanager
def warm(setup: Setup) -> Iterator[Sides]:
    """The same for an agent whose KV is on disk, in a new system, out of the page cache where the
    system can drop it, against that bare forward and a raw read of as many bytes as its KV, out of
    the page cache too."""
    with _memories(setup) as memories, TemporaryDirectory(prefix="kvactors-bench-") as folder:
        bare, asked = peers.Bare(setup.loaded, memories.prompt), questions(setup)
        path = Path(folder) / "file"
        raw_write(path, len(memories.prompt) * setup.loaded.spec.bytes_per_token)

        def theirs() -> Side:
            read = raw_read(path)
            seconds, tokens = bare.forward(next(asked))
            return Side(read + seconds, tokens)

        yield memories.warm, theirs


@contextmanager
def cold_over_hot(setup: Setup) -> Iterator[Sides]:
    """Time to the first token of an agent of 16,384 tokens that is cold, over one that is hot. A
    slow prefill flatters it: hot-16k says what hot is by itself."""
    with _memories(setup) as memories, memories.hot() as system:
        yield memories.cold, lambda: memories.ask(system)


@contextmanager
def cold_over_warm(setup: Setup) -> Iterator[Sides]:
    """Time to the first token of an agent of 16,384 tokens that is cold, over one whose KV is on
    disk, in a new system, out of the page cache where the system can drop it. A slow prefill
    flatters it: warm-16k says what warm is by itself."""
    with _memories(setup) as memories:
        yield memories.cold, memories.warm


class _Staggered:
    """Two agents of 4,096 tokens; B asks when a third of A's prefill is over."""

    def __init__(self, setup: Setup) -> None:
        self._prompts = [setup.prompt(setup.scale.tokens(4096), seed) for seed in (1, 2)]
        self._system = setup.system(progress=self._progress)
        self._third = threading.Event()
        self._third_at = 0.0

    def _progress(self, agent_id: str, done: int, total: int) -> None:
        if agent_id == "A" and 3 * done >= total and not self._third.is_set():
            self._third_at = time.perf_counter()
            self._third.set()

    @contextmanager
    def running(self) -> Iterator["_Staggered"]:
        with self._system as system:
            answer(system.spawn("first"), self._prompts[0][:64])
            yield self

    def alone(self) -> tuple[Side, Side, float]:
        """A's and B's times to the first token, one after the other, and when a third of A's
        prefill was over."""
        self._third.clear()
        begin, found = time.perf_counter(), []
        for name, prompt in zip("AB", self._prompts, strict=True):
            reply = answer(self._system.spawn(name), prompt)
            found.append(Side(reply.timing.first_token, reply.token_ids))
            self._system.forget(name)
        return found[0], found[1], self._third_at - begin

    def together(self) -> tuple[Side, Side]:
        """A's and B's times to the first token, where B comes when a third of A's prefill is
        over."""
        self._third.clear()
        futures = [self._system.spawn("A").ask(self._prompts[0], sampling=FIRST)]
        self._third.wait()
        futures.append(self._system.spawn("B").ask(self._prompts[1], sampling=FIRST))
        replies = [future.get() for future in futures]
        for name in "AB":
            self._system.forget(name)
        first, second = (Side(reply.timing.first_token, reply.token_ids) for reply in replies)
        return first, second


@contextmanager
def staggered_second(setup: Setup) -> Iterator[Sides]:
    """B (4,096 tokens) arrives when a third of A's prefill (4,096) is over: B's time to the first
    token, against both prefills back to back, counted from when a third of A's is over."""
    with _Staggered(setup).running() as pair:

        def back_to_back() -> Side:
            first, second, third = pair.alone()
            return Side(first.value + second.value - third, second.tokens)

        yield lambda: pair.together()[1], back_to_back


@contextmanager
def staggered_first(setup: Setup) -> Iterator[Sides]:
    """The same: A's time to the first token, against A alone."""
    with _Staggered(setup).running() as pair:
        yield lambda: pair.together()[0], lambda: pair.alone()[0]


CHUNKS = "chunks are cut elsewhere, and what is in a chunk is attended in floats"
REGIMES = (
    Regime("hot-16k", "bare forward of the same tokens over the same cache", 1.1, hot),
    Regime("warm-16k", "the same and a raw read of the KV's bytes", 1.3, warm),
    Regime("cold/hot-16k", "[paper, 4.2]: 81.6", 150, cold_over_hot, "higher", differ=CHUNKS),
    Regime("cold/warm-16k", "[paper, 4.2]: 10.5", 100, cold_over_warm, "higher", differ=CHUNKS),
    Regime("staggered-ttft-b", "both prefills back to back", 1.1, staggered_second, differ=CHUNKS),
    Regime("staggered-ttft-a", "A alone", 1.04, staggered_first, differ=CHUNKS),
)
