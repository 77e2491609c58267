"""What the regimes share: the model, on both sides, and how large a measurement is."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kvactors.actors import Agent, AgentSystem, Reply, Sampling
from kvactors.bench.random_model import random_llama

if TYPE_CHECKING:
    from kvactors.core.model.load import LoadedModel

__all__ = ["ENDLESS", "FIRST", "FULL", "QUICK", "TABLE", "Scale", "Setup", "answer", "endless"]

FIRST = Sampling(max_tokens=1)
# More than any measurement waits for.
ENDLESS = Sampling(max_tokens=4096)
LEAST_TOKENS = 48


@dataclass(frozen=True, slots=True)
class Scale:
    """`runs` of each side; contexts are `shrink` times shorter than the regime says, and there are
    `fewer` times fewer agents and turns; `decoded` tokens in one measurement."""

    runs: int
    shrink: int
    fewer: int
    decoded: int

    def tokens(self, count: int) -> int:
        """How many tokens stand for `count` of the regime."""
        return max(LEAST_TOKENS, count // self.shrink)

    def number(self, count: int) -> int:
        """How many agents or turns stand for `count` of the regime."""
        return max(2, count // self.fewer)


QUICK = Scale(runs=2, shrink=64, fewer=4, decoded=8)
TABLE = Scale(runs=5, shrink=1, fewer=1, decoded=48)
FULL = Scale(runs=9, shrink=1, fewer=1, decoded=96)


@dataclass
class Setup:
    """The model under test: `source` as AgentSystem takes it, picklable, since peers build it again
    in their own processes; and loaded on this thread for bare loops. `kv_bits` are ours."""

    scale: Scale
    source: Callable[[], Any] = random_llama
    kv_bits: int | None = 4
    _others: dict[Callable[[], Any], "LoadedModel"] = field(default_factory=dict)

    @property
    def loaded(self) -> "LoadedModel":
        """The model for this thread, cast as the engine casts it."""
        return self.load(self.source)

    @property
    def model(self) -> Any:
        """mlx-lm's own module."""
        return self.loaded.model

    def load(self, source: Callable[[], Any]) -> "LoadedModel":
        """Another model for this thread, kept."""
        from kvactors.core.model.load import load_model
        from kvactors.core.model.options import ModelOptions

        if source not in self._others:
            self._others[source] = load_model(source, ModelOptions(kv_bits=self.kv_bits))
        return self._others[source]

    def system(self, source: Callable[[], Any] | None = None, **options: Any) -> AgentSystem:
        """An engine over the model, by default without a store, and without drafts: a random model
        repeats itself, and steps of one token are what most lines compare."""
        options.setdefault("kv_bits", self.kv_bits)
        options.setdefault("speculation", "off")
        options.setdefault("store", False)
        return AgentSystem(source or self.source, model_name="bench", **options)

    def prompt(
        self, tokens: int, seed: int = 0, source: Callable[[], Any] | None = None
    ) -> list[int]:
        """So many random `tokens` of the vocabulary of `source`, by `seed`; a length is not scaled
        here."""
        vocabulary = self.load(source or self.source).spec.vocab_size
        rng = np.random.default_rng([seed, tokens])
        ids: list[int] = rng.integers(1, vocabulary, tokens).tolist()
        return ids


def endless(name: str) -> Callable[[], Any]:
    """A model by name or directory, that never ends a turn by itself."""
    return partial(_load_endless, name)


def _load_endless(name: str) -> tuple[Any, Any]:
    from mlx_lm.utils import load as mlx_load

    model, tokenizer = mlx_load(name)[:2]
    tokenizer.eos_token_ids = set()
    return model, tokenizer


def answer(agent: Agent, prompt: list[int], max_tokens: int = 1) -> Reply:
    """One whole turn of `agent`: its answer of at most `max_tokens` to `prompt`."""
    reply: Reply = agent.ask(prompt, sampling=Sampling(max_tokens=max_tokens)).get()
    return reply
