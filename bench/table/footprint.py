"""Regimes of bytes and messages: KV in memory, peaks, what a save and a restore cost, tells."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from pykka import ThreadingActor

from kvactors.actors import Agent, AgentSystem
from kvactors.actors.runtime.dispatcher import Dispatcher, PooledActor
from kvactors.bench import disk, peers
from kvactors.bench.micro import memory, storage
from kvactors.bench.peer_process import in_its_own_process
from kvactors.bench.regime import (
    ANYWHERE,
    FLOAT_THERE,
    NOTHING_DECODED,
    Regime,
    Side,
    Sides,
)
from kvactors.bench.setup import ENDLESS, Setup, answer
from kvactors.bench.turns import hot_agents

__all__ = ["REGIMES"]

LONG = 16_384
# Q4 in groups of 64 with float16 scales, of float16.
KV_RATIO = 0.28125
MESSAGES = 20_000
SAMPLES = 16


@contextmanager
def kv_bytes(setup: Setup) -> Iterator[Sides]:
    """Bytes of KV a token that MLX has allocated for an idle agent at 4 bits with float16 scales,
    over those of float16, by formula; random llama of 4 layers."""
    row = memory.kv_row("float16", 4, max(256, setup.scale.tokens(512)))
    yield (
        lambda: Side(row["measured_bytes"]),
        lambda: Side(row["formula_bytes"] / row["formula_ratio"]),
    )


@contextmanager
def kv_bytes_running(setup: Setup) -> Iterator[Sides]:
    """Bytes a token that MLX has allocated, above the loaded model, for 8 agents of 1,000 tokens
    while all decode (rows with their spare slots, floats kept of rows, what is hot beside them;
    the median of 16 moments, after as many tokens), against the KV that they keep when idle."""
    count, length = 8, setup.scale.tokens(1000)
    prompts = [setup.prompt(length, seed) for seed in range(count)]
    with setup.system() as system:
        hot_agents(system, prompts[:1])
        system.forget("agent 0")
        before = _active()
        agents = hot_agents(system, prompts)
        tokens = count * (length + 1)

        def running() -> Side:
            held = _while_all_decode(system, agents, [[1]] * count) - before
            return Side(held / tokens)

        yield running, lambda: Side(system.stats()["hot_bytes"] / tokens)


@contextmanager
def forks_bytes(setup: Setup) -> Iterator[Sides]:
    """Bytes that MLX has allocated, above the loaded model (the median of 16 moments, after as many
    tokens: rows with their spare slots, what is hot, and what a step has beside them), for 16
    agents that were forked from one of 16,000 tokens and all decode behind a question of 100 tokens
    each, against what one such beginning and their questions take by formula."""
    count, length, own = 16, setup.scale.tokens(16_000), 100
    token = setup.loaded.spec.bytes_per_token
    with setup.system(max_batch=count) as system:
        questions = [setup.prompt(own, index) for index in range(count)]
        hot_agents(system, questions[:1])
        system.forget("agent 0")
        before = _active()
        answer(system.spawn("parent"), setup.prompt(length))
        forks = [system.spawn(f"fork {index}", from_="parent") for index in range(count)]
        yield (
            lambda: Side((_while_all_decode(system, forks, questions) - before) / 1e6),
            lambda: Side(token * (length + count * own) / 1e6),
        )


def _while_all_decode(
    system: AgentSystem, agents: Sequence[Agent], prompts: Sequence[list[int]]
) -> float:
    """What MLX has while `agents` of a `system` answer these `prompts`, which are rewound then."""
    *others, last = agents
    pending = [agent.ask(prompts[row], sampling=ENDLESS) for row, agent in enumerate(others)]
    with last.stream(prompts[-1], sampling=ENDLESS) as stream:
        while system.stats()["decoding"] < len(agents):
            next(stream)
        moments = [_after(stream) for _ in range(2 * SAMPLES)]
    for agent in others:
        agent.cancel()
    for future in pending:
        future.get()
    for agent in agents:
        agent.rewind().get()
    return median(moments[SAMPLES:])


def _after(pieces: Iterator[object]) -> int:
    """What MLX has allocated when another piece has arrived."""
    next(pieces)
    return _active()


def _active() -> int:
    import mlx.core as mx

    mx.clear_cache()
    return int(mx.get_active_memory())


@contextmanager
def _peak_against(setup: Setup, chunk: int) -> Iterator[Sides]:
    tokens = setup.scale.tokens(12_288)
    asked = (memory.random_prompt(tokens), chunk)

    def ours() -> Side:
        peak, answered = memory.peak_chunked(tokens, kv_bits=setup.kv_bits)
        return Side(peak / 1e6, answered)

    with in_its_own_process(memory.small_llama, peers.prefill_peak, *asked) as theirs:

        def other() -> Side:
            peak, answered = theirs()
            return Side(peak / 1e6, answered)

        yield ours, other


def prefill_peak(setup: Setup) -> AbstractContextManager[Sides]:
    """MLX's peak, above the model, of a prefill of 12,288 tokens through AgentSystem as it is by
    default, over that of mlx-lm's float cache in its default chunks of 2,048; random llama of 4
    layers."""
    return _peak_against(setup, peers.DEFAULT_CHUNK)


def prefill_peak_small(setup: Setup) -> AbstractContextManager[Sides]:
    """The same against mlx-lm in chunks of 512."""
    return _peak_against(setup, 512)


@contextmanager
def restored(setup: Setup) -> Iterator[Sides]:
    """Bytes a second of reading an agent's KV of 16,384 tokens from a store opened anew, checked
    and ready to be injected, against reading a file of as many bytes into memory of that size;
    both out of the page cache where the system can drop them."""
    tokens = setup.scale.tokens(LONG)
    size = tokens * storage.TOKEN_BYTES
    numbers = count()
    with TemporaryDirectory(prefix="kvactors-bench-") as folder:
        path = Path(folder) / "file"
        disk.raw_write(path, size)

        def ours() -> Side:
            run = next(numbers)
            _, read = storage.store_run(Path(folder) / f"store-{run}", tokens, run, None)
            return Side(size / read / 1e9)

        yield ours, lambda: Side(size / disk.raw_read(path) / 1e9)


@contextmanager
def tells(setup: Setup) -> Iterator[Sides]:
    """Messages a second that one thread tells one actor, until the last is handled, against
    pykka's ThreadingActor."""
    number = max(1000, MESSAGES // setup.scale.shrink)
    dispatcher = Dispatcher("bench", 1)
    try:
        yield (
            lambda: _tell_rate(_Pooled.start(dispatcher, number), number),
            lambda: _tell_rate(_Threaded.start(number), number),
        )
    finally:
        dispatcher.close()


class _Counting:
    """Counts messages; the event that comes first is set by the last."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.left = number
        self.done: threading.Event | None = None

    def on_receive(self, message: Any) -> None:
        """Count a message."""
        if self.done is None:
            self.done = message
            return
        self.left -= 1
        if not self.left:
            self.done.set()


class _Threaded(_Counting, ThreadingActor):
    """An actor with a thread of its own."""


class _Pooled(_Counting, PooledActor):
    """An actor on a dispatcher's thread."""

    registered = False

    def __init__(self, dispatcher: Dispatcher, number: int) -> None:
        super().__init__(number)
        self.dispatcher = dispatcher


def _tell_rate(actor: Any, number: int) -> Side:
    done = threading.Event()
    actor.tell(done)
    begin = time.perf_counter()
    for _ in range(number):
        actor.tell("hello")
    done.wait()
    rate = number / (time.perf_counter() - begin)
    actor.stop()
    return Side(rate)


REGIMES = (
    Regime(
        "kv-bytes-per-token",
        "float16 by formula",
        KV_RATIO,
        kv_bytes,
        unit="bytes",
        runs=1,
        holds_on=ANYWHERE,
        differ=NOTHING_DECODED,
    ),
    Regime(
        "kv-bytes-running",
        "the same agents, idle",
        # What is idle, a quarter more for its row, and the same as floats of 32 bits.
        9.0,
        kv_bytes_running,
        unit="bytes",
        differ=NOTHING_DECODED,
    ),
    Regime(
        "forks-bytes",
        "one beginning and what follows, by formula",
        1.15,
        forks_bytes,
        unit="MB",
        runs=1,
        holds_on=ANYWHERE,
        differ=NOTHING_DECODED,
    ),
    Regime(
        "prefill-peak-12k",
        "mlx-lm, chunks of 2,048",
        0.5,
        prefill_peak,
        unit="MB",
        differ=FLOAT_THERE,
    ),
    Regime(
        "prefill-peak-12k-512",
        "mlx-lm, chunks of 512",
        1.0,
        prefill_peak_small,
        unit="MB",
        differ=FLOAT_THERE,
    ),
    Regime(
        "restore-rate",
        "raw read",
        0.7,
        restored,
        "higher",
        "GB/s",
        holds_on=ANYWHERE,
        differ=NOTHING_DECODED,
    ),
    Regime(
        "tell-rate",
        "pykka ThreadingActor",
        1.0,
        tells,
        "higher",
        "messages/s",
        holds_on=ANYWHERE,
        differ=NOTHING_DECODED,
    ),
)
