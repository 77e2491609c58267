"""Regimes of whole traces: conversations that resend everything, sub-agents, a client that retries.

What clients say is made up; how they say it is theirs (`clients`).
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from kvactors.bench.peer_process import in_another_process
from kvactors.bench.regime import ANYWHERE, FLOAT_THERE, NOTHING_DECODED, Regime, Side, Sides
from kvactors.bench.serve.client import Answer, fan_out, leaver, play, together
from kvactors.bench.serve.clients import Client, claude_code, codex, opencode
from kvactors.bench.serve.peer import mlx_lm_server
from kvactors.bench.serve.setting import scene, spoken, text, tools
from kvactors.bench.setup import Scale, Setup

__all__ = ["REGIMES"]

CONVERSATIONS, TURNS, ANSWER = 8, 10, 24
SUB_AGENTS, MAIN_TURNS, FEW = 16, 30, 6
SUB_ANSWER = 8
RETRIED = 4096


@contextmanager
def eight_by_ten(setup: Setup) -> Iterator[Sides]:
    """8 conversations at once of 10 turns each over chat completions, 100 new tokens and 24 decoded
    ones behind a common system prompt of 1,000 tokens, each request with everything that was said
    before, until all have their answers; against `mlx_lm.server`, a process of its own, with its
    best chunks and room for all caches. The tools are text of the system prompt, since mlx-lm
    leaves them out where the template has none."""
    scale = setup.scale
    several, turns = scale.number(CONVERSATIONS), scale.number(TURNS)
    system = text(setup, scale.tokens(1000), 0)
    asked = [_says(setup, scale.tokens(100), turns, agent) for agent in range(several)]
    decoded, runs = min(ANSWER, scale.decoded), (count(), count())
    prompt = setup.prompt(scale.tokens(1000))
    with (
        scene(setup) as here,
        in_another_process(mlx_lm_server, setup.source, prompt) as peer,
    ):

        def played(url: str, run: int) -> Side:
            # Another system prompt in each pair, so that nothing is known of before.
            clients = [opencode(f"{run}-{i}", f"{run:03} {system}") for i in range(several)]
            seconds, found = here.clients(play, url, clients, asked, decoded)
            return Side(seconds, [code for answers in found for code in spoken(answers)])

        yield (
            lambda: played(here.url, next(runs[0])),
            lambda: played(peer(), next(runs[1])),
        )


def _says(setup: Setup, tokens: int, turns: int, seed: int) -> list[str]:
    return [text(setup, tokens, 1000 * (seed + 1) + turn) for turn in range(turns)]


class _FanOut(NamedTuple):
    """What a main agent and its sub-agents got: 99th percentiles of the main agent's times to the
    first token, turns that computed the beginning that all share, and bytes."""

    beside: float
    alone: float
    anew: int
    peak: int
    budget: int


@lru_cache(1)
def _fan_out(scale: Scale, source: Callable[[], Any], kv_bits: int | None) -> _FanOut:
    """One run for all regimes of it, since it takes long. The parameters are those of `Setup`."""
    setup = Setup(scale, source, kv_bits)
    size, turns = scale.tokens, scale.number(MAIN_TURNS)
    clients = _family(setup, scale.number(SUB_AGENTS))
    asked = [_says(setup, size(48), turns, agent) for agent in range(len(clients))]
    decoded = min(SUB_ANSWER, scale.decoded)
    budget = _memory(setup, _beginning(setup) + turns * (size(48) + decoded))
    with (
        TemporaryDirectory(prefix="kvactors-bench-") as folder,
        scene(setup, store=Path(folder) / "store", memory_budget=budget) as here,
    ):
        # The first turn of a process also pays for kernels and buffers.
        here.clients(together, here.url, [opencode("first", "x").request(["x"], 1)])
        before = _peak_from_here()
        found = here.clients(fan_out, here.url, clients, asked, decoded)
        peak = _peak() - before
    with scene(setup) as here:
        (alone,) = here.clients(fan_out, here.url, clients[:1], asked[:1], decoded)
    answers = [answer for each in found for answer in each]
    anew = sum(answer.cached < _beginning(setup) // 2 for answer in answers)
    print(f"  {len(answers)} turns, {anew} of them computed the beginning", flush=True)
    return _FanOut(_late(found[0]), _late(alone), anew, peak, budget)


def _family(setup: Setup, several: int) -> list[Client]:
    """A main agent and so many sub-agents, with the same system prompt and tools."""
    half = _beginning(setup) // 2
    system, known = text(setup, half, 0), tools(setup, half)
    names = ("", *(f"sub-{number}" for number in range(several)))
    return [claude_code(name, system, known) for name in names]


def _beginning(setup: Setup) -> int:
    """Tokens of the system prompt and of what tools say of themselves."""
    return setup.scale.tokens(1000)


def _late(answers: list[Answer]) -> float:
    """The 99th percentile of times to the first token, but for the turn that begins anew."""
    return float(np.percentile([answer.first for answer in answers[1:]], 99))


def _memory(setup: Setup, tokens: int) -> int:
    """Bytes for so many tokens of 6 idle agents, as many again for those that run, and the work
    space of the longest forward. What a template says of tools comes on top: 1,000 tokens."""
    from kvactors.core.model.workspace import WorkSpace

    few, tokens = setup.scale.number(FEW), tokens + 1000
    space = WorkSpace.measure(setup.loaded)
    kv = 2 * few * tokens * setup.loaded.spec.bytes_per_token
    return kv + max(space.chunk(256, 1, tokens), space.decode(few, tokens))


def _peak_from_here() -> int:
    """What MLX has allocated; its peak is counted from now on."""
    import mlx.core as mx

    mx.reset_peak_memory()
    return int(mx.get_active_memory())


def _peak() -> int:
    import mlx.core as mx

    return int(mx.get_peak_memory())


def _of(setup: Setup) -> _FanOut:
    return _fan_out(setup.scale, setup.source, setup.kv_bits)


@contextmanager
def sub_agents_first(setup: Setup) -> Iterator[Sides]:
    """A main agent of Claude Code takes 30 turns of 48 new tokens, one after the other, behind a
    system prompt and tools of 1,000, and 16 sub-agents with the same ones take theirs at once from
    its first answer to its last, with memory for 6 of them and a store: the 99th percentile of the
    main agent's times to the first token, but for the first turn, against the same turns of it
    alone, with memory for all."""
    yield lambda: Side(_of(setup).beside), lambda: Side(_of(setup).alone)


@contextmanager
def sub_agents_anew(setup: Setup) -> Iterator[Sides]:
    """Of the same run: turns, the main agent's first one included, that had no KV of the beginning
    that all share, against 1, that first one."""
    yield lambda: Side(_of(setup).anew), lambda: Side(1)


@contextmanager
def sub_agents_peak(setup: Setup) -> Iterator[Sides]:
    """Of the same run: MLX's peak above the loaded model, against the memory budget."""
    yield lambda: Side(_of(setup).peak / 1e6), lambda: Side(_of(setup).budget / 1e6)


@contextmanager
def retry(setup: Setup) -> Iterator[Sides]:
    """Tokens that are prefilled when Codex goes away within the prefill of a prompt of 4,096
    tokens, when half of it is done, and sends the same again at once; against the tokens of the
    prompt."""
    tokens, threads = setup.scale.tokens(RETRIED), count()
    half = threading.Event()

    def progress(_agent: str, done: int, total: int) -> None:
        if 2 * done >= total:
            half.set()

    with scene(setup, progress=progress) as here, in_another_process(leaver) as first:
        prompt = 0

        def ours() -> Side:
            nonlocal prompt
            thread = f"thread-{next(threads)}"
            request = codex(thread, thread).request([text(setup, tokens, next(threads))], 1)
            before = here.system.stats()["prefilled_tokens"]
            half.clear()
            first(here.url, request)
            half.wait()
            first()
            _, (answer,) = here.clients(together, here.url, [request])
            prompt = answer.prompt
            return Side(here.system.stats()["prefilled_tokens"] - before)

        ours()
        yield ours, lambda: Side(prompt)


REGIMES = (
    Regime("serve-trace-8x10", "mlx_lm.server", 0.5, eight_by_ten, runs=2, differ=FLOAT_THERE),
    Regime(
        "serve-subagents",
        "the main agent alone",
        1.5,
        sub_agents_first,
        runs=1,
        differ=NOTHING_DECODED,
    ),
    Regime(
        "serve-subagents-anew",
        "the first turn",
        1.0,
        sub_agents_anew,
        unit="turns",
        runs=1,
        holds_on=ANYWHERE,
        differ=NOTHING_DECODED,
    ),
    Regime(
        "serve-subagents-peak",
        "the memory budget",
        1.0,
        sub_agents_peak,
        unit="MB",
        runs=1,
        holds_on=ANYWHERE,
        differ=NOTHING_DECODED,
    ),
    Regime(
        "serve-retry",
        "the tokens of the prompt",
        1.05,
        retry,
        unit="tokens",
        runs=3,
        holds_on=ANYWHERE,
        differ=NOTHING_DECODED,
    ),
)
