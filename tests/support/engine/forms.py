"""Agents whose KV changes its form, and the oracle of each of their turns: a model of one form."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from makers import load_as_meant

from kvactors.actors import Sampling
from kvactors.core.cache.segment import Segment
from kvactors.core.engine.engine import Engine, EngineConfig
from kvactors.core.model.load import LoadedModel
from kvactors.core.model.options import ModelOptions
from kvactors.core.schedule.events import Finished, KVNeeded
from kvactors.core.schedule.request import Request
from kvactors.core.testing.engines import make_request, run_engine
from kvactors.core.testing.families import build
from kvactors.core.testing.models import PlainTokenizer, snap_to_grid, tiny_model

__all__ = [
    "ANSWER",
    "LIMIT",
    "Life",
    "expected",
    "grid_model",
    "load",
    "new_engine",
    "oracle",
    "prompts",
    "run",
    "tell",
]

LIMIT = 60


ANSWER = Sampling(max_tokens=8)


@functools.cache
def grid_model(kind: str) -> Any:
    return snap_to_grid(tiny_model() if kind == "llama" else build(kind))


@functools.cache
def load(kind: str = "llama", kv_bits: Any = 4, float_tokens: int = LIMIT) -> LoadedModel:
    options = ModelOptions(kv_bits=kv_bits, float_tokens=float_tokens, attention="packed")
    return load_as_meant(kind, lambda: (grid_model(kind), PlainTokenizer()), options)


def new_engine(kind: str = "llama", budget: int = 1 << 30) -> Engine:
    return Engine(load(kind), EngineConfig(8, budget, True))


@functools.cache
def oracle(kind: str, kv_bits: int | None) -> Engine:
    return Engine(load(kind, kv_bits, 0), EngineConfig(1, 1 << 30, False))


def expected(tokens: Sequence[int], sampling: Sampling = ANSWER, kind: str = "llama") -> list[int]:
    """What is answered to a ledger of these tokens by a cache of its one form."""
    engine = oracle(kind, None if len(tokens) <= LIMIT else 4)
    end = run_engine(engine, [(0, make_request("alone", [], tokens, sampling))])["alone"]
    engine.forget("alone")
    return end.request.generated


def prompts(*lengths: int, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(1, 128, length).tolist() for length in lengths]


@dataclass
class Life:
    """An agent's ledger, and its KV as a store has it."""

    name: str
    tokens: list[int] = field(default_factory=list)
    stored: dict[int, Segment] = field(default_factory=dict)

    def turn(self, new: Sequence[int], sampling: Sampling = ANSWER) -> Request:
        return make_request(self.name, self.tokens, new, sampling)

    def end(self, finished: Finished) -> None:
        self.tokens = finished.request.tokens
        for part in finished.exported:
            self.stored = {start: p for start, p in self.stored.items() if start < part.start}
            self.stored[part.start] = part

    def in_store(self) -> list[Segment]:
        return [self.stored[start] for start in sorted(self.stored)]


def run(engine: Engine, lives: Sequence[Life], requests: Sequence[Request]) -> list[Request]:
    """Turns that arrive one after the other, and run together; what is stored is given back."""
    by_name = {life.name: life for life in lives}
    waiting = list(requests)
    while waiting or engine.busy:
        if waiting:
            engine.submit(waiting.pop(0))
        for event in engine.step():
            if isinstance(event, KVNeeded):
                engine.provide(event.agent_id, by_name[event.agent_id].in_store())
            elif isinstance(event, Finished):
                by_name[event.request.agent_id].end(event)
                sent = sum(part.nbytes for part in event.exported)
                engine.saved(event.request.agent_id, sent)
        engine.check()
    return list(requests)


def tell(engine: Engine, life: Life, new: Sequence[int]) -> Request:
    """One turn, which must be as the oracle has it."""
    told = [*life.tokens, *new]
    (request,) = run(engine, [life], [life.turn(new)])
    assert request.generated == expected(told)
    assert request.form.index == (len(told) <= LIMIT)
    return request
