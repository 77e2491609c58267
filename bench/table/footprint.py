"""Regimes of bytes and messages: KV in memory, peaks, what a save and a restore cost, tells."""

import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pykka import ThreadingActor

from kvactors.actors import Sampling
from kvactors.actors.runtime.dispatcher import Dispatcher, PooledActor
from kvactors.bench import disk
from kvactors.bench.micro import memory, storage
from kvactors.bench.setup import Setup, answer
from kvactors.bench.table.regime import Regime

__all__ = ["REGIMES"]

Pairs = Iterator[tuple[float, float]]
LONG = 16_384
# Q4 in groups of 64 with float16 scales, of float16.
KV_RATIO = 0.28125
MESSAGES = 20_000


def kv_bytes(setup: Setup) -> Pairs:
    """Bytes of KV a token that MLX has allocated for an idle agent at 4 bits with float16 scales,
    over those of float16, by formula; random llama of 4 layers."""
    row = memory.kv_row("float16", 4, max(256, setup.scale.tokens(512)))
    yield row["measured_bytes"], row["formula_bytes"] / row["formula_ratio"]


def prefill_peak(setup: Setup) -> Pairs:
    """MLX's peak of a prefill of 12,288 tokens through AgentSystem as it is by default, over that
    of one forward of all tokens over mlx-lm's float cache; random llama of 4 layers."""
    tokens = setup.scale.tokens(12_288)
    while True:
        whole, _ = memory.peak_unchunked(tokens)
        yield memory.peak_chunked(tokens, None) / 1e6, whole / 1e6


def while_saving(setup: Setup) -> Pairs:
    """Seconds a token of an agent (500 in memory) from the end of another's turn of 16,384 tokens
    until that is saved, at least 8 tokens long, against as many where there is no store. Beside
    a reader a save rests, for two seconds at most: it is a mean over as long."""
    prompt = setup.prompt(setup.scale.tokens(LONG))
    with TemporaryDirectory(prefix="kvactors-bench-") as folder:
        for run in count():
            ours, tokens = _step_after_a_turn(setup, prompt, Path(folder) / str(run))
            yield ours, _step_after_a_turn(setup, prompt, None, tokens)[0]


def _step_after_a_turn(
    setup: Setup, prompt: list[int], store: Path | None, tokens: int = 8
) -> tuple[float, int]:
    """Mean gap of so many tokens at least, until the turn is saved; and of how many."""
    # The writer's prefill takes long chunks: only its end is of interest.
    with setup.system(store=store or False, target_latency=60.0) as system:
        decoder, writer = system.spawn("decoder"), system.spawn("writer")
        answer(decoder, setup.prompt(setup.scale.tokens(500)))
        times = []
        with decoder.stream([1], sampling=Sampling(max_tokens=8192)) as stream:
            next(stream)
            asked = time.perf_counter()
            future = writer.ask(prompt, sampling=Sampling(max_tokens=1))
            while not future.done:
                next(stream)
                times.append(time.perf_counter())
            reply = future.get()
            # Of the same step as the writer's only token is the decoder's that came next.
            ended = asked + reply.timing.first_token
            later = [at for at in times if at > ended][1:]
            while len(later) < tokens or not (store is None or reply.cached.done):
                next(stream)
                later.append(time.perf_counter())
    return (later[-1] - ended) / len(later), len(later)


def restored(setup: Setup) -> Pairs:
    """Bytes a second of reading an agent's KV of 16,384 tokens from a store opened anew, checked
    and ready to be injected, against reading a file of as many bytes and copying it; both out of
    the page cache where the system can drop them."""
    tokens = setup.scale.tokens(LONG)
    size = tokens * storage.TOKEN_BYTES
    with TemporaryDirectory(prefix="kvactors-bench-") as folder:
        for run in count():
            _, read = storage.store_run(Path(folder) / f"store-{run}", tokens, run, None)
            _, raw = disk.disk_run(Path(folder) / "file", size)
            yield size / read / 1e9, size / raw / 1e9


def tells(setup: Setup) -> Pairs:
    """Messages a second that one thread tells one actor, until the last is handled, against
    pykka's ThreadingActor."""
    number = max(1000, MESSAGES // setup.scale.shrink)
    dispatcher = Dispatcher("bench", 1)
    try:
        while True:
            ours = _tell_rate(_Pooled.start(dispatcher, number), number)
            yield ours, _tell_rate(_Threaded.start(number), number)
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


def _tell_rate(actor: Any, number: int) -> float:
    done = threading.Event()
    actor.tell(done)
    begin = time.perf_counter()
    for _ in range(number):
        actor.tell("hello")
    done.wait()
    rate = number / (time.perf_counter() - begin)
    actor.stop()
    return rate


REGIMES = (
    Regime("kv-bytes-per-token", "float16 by formula", KV_RATIO, kv_bytes, unit="bytes", runs=1),
    Regime("prefill-peak-12k", "mlx-lm, one forward of all", 0.23, prefill_peak, unit="MB"),
    Regime("decode-while-saving-16k", "the same without a store", 1.05, while_saving),
    Regime("restore-rate", "raw read and copy", 0.7, restored, "higher", "GB/s"),
    Regime("tell-rate", "pykka ThreadingActor", 1.0, tells, "higher", "messages/s"),
)
