"""Lives of a few agents under a small budget, and the most memory that they took."""

import functools
import gc
import re
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import numpy as np
from makers import Ticks

from kvactors.core.cache.segment import Segment
from kvactors.core.engine.engine import Engine, EngineConfig
from kvactors.core.errors import MemoryExceeded
from kvactors.core.model.load import LoadedModel, load_model
from kvactors.core.model.options import ModelOptions
from kvactors.core.model.workspace import WorkSpace
from kvactors.core.schedule.events import Aborted, Event, Finished, KVNeeded
from kvactors.core.schedule.request import Request
from kvactors.core.schedule.sampling import Sampling
from kvactors.core.testing.engines import make_request
from kvactors.core.testing.families import build
from kvactors.core.testing.models import PlainTokenizer, tiny_model

__all__ = ["FAMILIES", "Lives", "Lot", "least_of", "live"]

SHORT_TRUNK = 64

FAMILIES = {
    "llama": "every token",
    "qwen3_moe": "every token, and experts",
    "gemma3_text": "windows",
    "gpt_oss": "windows, and sinks",
    "deepseek_v2": "keys and values of different widths",
    "deepseek_v3": "a latent",
    "deepseek_v32": "a latent, and chosen keys",
    "gemma2": "attention of its own",
    "mamba2": "states",
    "qwen3_next": "states, and every token",
    "falcon_h1": "both in one layer",
}


@dataclass(frozen=True)
class Lot:
    """What a crowd is and what it does. Each agent has two turns; between them some are forked, and
    each goes `back` by so many tokens.

    `lengths`: tokens of each one's first prompt, behind a beginning of `shared` tokens that all
    have. Every other agent draws one of `choices` instead of decoding. With `stored` there is a
    store, which takes a few steps to write. With `trunks` short beginnings are read where they are
    too.
    """

    family: str
    attention: str = "auto"
    reproducible: bool = False
    float_tokens: int = 0
    budget: int = 4_000_000
    max_batch: int = 4
    lengths: tuple[int, ...] = (300,)
    shared: int = 0
    forks: int = 0
    choices: bool = False
    stored: bool = False
    sampled: bool = False
    trunks: bool = False
    back: int = 0
    seed: int = 0


@dataclass(frozen=True)
class Lives:
    """The most memory that was taken, as a share of the budget; turns that ended, and those that
    were refused."""

    peak: float
    ended: int
    refused: int


def live(lot: Lot) -> Lives:
    """Run the two turns of each agent."""
    loaded = _loaded(lot)
    gc.collect()
    mx.clear_cache()
    crowd = _Crowd(lot, loaded)
    try:
        crowd.first_turns()
        crowd.fork()
        crowd.second_turns()
    finally:
        crowd.engine.memory.release()
    return Lives(crowd.peak / lot.budget, crowd.ended, crowd.refused)


def least_of(lot: Lot) -> int:
    """Bytes that the longest turn which is refused of its agents needs, as the refusal says."""
    crowd = _Crowd(lot, _loaded(lot))
    crowd.first_turns()
    crowd.engine.memory.release()
    return max(int(need) for said in crowd.said for need in re.findall(r"need (\d+) bytes", said))


def _loaded(lot: Lot) -> LoadedModel:
    make = _with_trunks if lot.trunks else _load
    return make(lot.family, lot.attention, lot.reproducible, lot.float_tokens)


class _Crowd:
    def __init__(self, lot: Lot, loaded: LoadedModel) -> None:
        self.lot = lot
        self.ended = self.refused = 0
        self.said: list[str] = []
        config = EngineConfig(lot.max_batch, lot.budget, lot.stored)
        for form in loaded.forms:
            WorkSpace.once(form)
        self.engine = Engine(loaded, config, clock=Ticks())
        self._before = mx.get_active_memory() - self.engine.memory.active
        mx.reset_peak_memory()
        self._rng = np.random.default_rng(lot.seed)
        self._beginning = self._tokens(lot.shared)
        self._known: dict[str, list[int]] = {}
        self._written: dict[str, list[Segment]] = {}
        self._unwritten: list[tuple[str, list[Segment]]] = []

    @property
    def peak(self) -> int:
        return max(0, int(mx.get_peak_memory()) - self._before)

    def first_turns(self) -> None:
        for number, length in enumerate(self.lot.lengths):
            self._ask(f"{number}", [*self._beginning, *self._tokens(length)], number)
        self._run()

    def fork(self) -> None:
        for number, parent in enumerate(list(self._known)[: self.lot.forks]):
            self.engine.memory.fork(parent, f"child {number}")
            self._known[f"child {number}"] = list(self._known[parent])

    def second_turns(self) -> None:
        for number, name in enumerate(reversed(list(self._known))):
            self._known[name] = self._known[name][: max(1, len(self._known[name]) - self.lot.back)]
            self._ask(name, self._tokens(1 + 40 * (number % 4)), number)
        self._run()

    def _ask(self, name: str, new: list[int], number: int) -> None:
        drawn = Sampling(max_tokens=8, temperature=0.7, top_p=0.9, seed=number)
        sampling = drawn if self.lot.sampled else Sampling(max_tokens=4 + 30 * (number % 3))
        request = make_request(name, self._known.get(name, []), new, sampling, turn=number)
        if name not in self._known and self._beginning:
            request.shared, request.prompt_hash = len(self._beginning), "the same"
            request.tenant = ""
        if self.lot.choices and number % 2:
            request.choices = tuple(tuple(self._tokens(size)) for size in (1, 20, 4))
            request.sampling = Sampling(max_tokens=20)
        try:
            self.engine.submit(request)
        except MemoryExceeded as error:
            self.refused += 1
            self.said.append(str(error))

    def _run(self) -> None:
        steps = 0
        while self.engine.busy or self._unwritten:
            steps += 1
            self._step()
            if self._unwritten and (steps % 4 == 0 or not self.engine.busy):
                self.engine.saved(*self._written_now())
            self.engine.check()

    def _step(self) -> None:
        """One step; when it returns nobody holds an event, and with it what was exported."""
        for event in self.engine.step():
            self._hear(event)

    def _written_now(self) -> tuple[str, int]:
        """Whose KV was written next, and its bytes; nobody looks at it any more."""
        name, parts = self._unwritten.pop(0)
        return name, sum(part.nbytes for part in parts)

    def _hear(self, event: Event) -> None:
        if isinstance(event, KVNeeded):
            self.engine.provide(event.agent_id, self._written.get(event.agent_id, ()))
        elif isinstance(event, Aborted):
            raise event.error
        elif isinstance(event, Finished):
            self.ended += 1
            self._save(event.request, list(event.exported))

    def _save(self, request: Request, parts: list[Segment]) -> None:
        name = request.agent_id
        self._known[name] = request.tokens
        if parts:
            before = [p for p in self._written.get(name, []) if p.start < parts[0].start]
            # Of a file there would be no view of the engine's memory.
            self._written[name] = [*before, *map(_copied, parts)]
            self._unwritten.append((name, parts))

    def _tokens(self, count: int) -> list[int]:
        tokens: list[int] = self._rng.integers(1, 128, count).tolist()
        return tokens


def _copied(part: Segment) -> Segment:
    tensors = tuple((*what, bytes(data)) for *what, data in part.tensors)
    return Segment(part.start, part.end, part.tokens_hash, part.layout, tensors)  # type: ignore[arg-type]


@functools.cache
def _model(family: str) -> Any:
    return tiny_model(num_hidden_layers=3) if family == "llama" else build(family)


@functools.cache
def _load(family: str, attention: str, reproducible: bool, float_tokens: int) -> LoadedModel:
    options = ModelOptions(
        attention=attention, reproducible=reproducible, float_tokens=float_tokens
    )
    return load_model(lambda: (_model(family), PlainTokenizer()), options)


@functools.cache
def _with_trunks(family: str, attention: str, reproducible: bool, float_tokens: int) -> LoadedModel:
    forms = [
        replace(form, policy=replace(form.policy, launch_tokens=SHORT_TRUNK))
        for form in _load(family, attention, reproducible, float_tokens).forms
    ]
    return replace(forms[0], floats=forms[1] if forms[1:] else None)
