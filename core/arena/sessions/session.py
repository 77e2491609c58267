"""Session: an mlx-lm model, a cache of the family, and the bytes between them [cache-family, 4.3].

    with make_decode_session(model, config) as session:
        logits = session.step(prompt, range(len(prompt)))

A session belongs to the thread that makes it, as MLX's arrays do.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import mlx.core as mx

from kvactors.core.arena.sessions.planned_row import PlannedRow
from kvactors.core.attention import seam
from kvactors.core.cache.family.config import CacheConfig, ModelFacts
from kvactors.core.cache.family.faces import (
    Cache,
    DecodeCache,
    Mover,
    Planner,
    SeqCache,
    TreeCache,
)
from kvactors.core.cache.family.registry import build, faced
from kvactors.core.cache.family.session import CacheSession
from kvactors.core.cache.family.step_plan import whole_numbers
from kvactors.core.cache.spec import ModelCacheSpec
from kvactors.core.errors import InvalidConfig, InvalidStep, TokenOutOfRange, UnsupportedLayer
from kvactors.core.model.layer_kinds import derive_layers
from kvactors.core.model.load import choose_policy, derive_spec, stated_positions
from kvactors.core.model.options import ModelOptions
from kvactors.core.numbers import whole

__all__ = [
    "Session",
    "make_decode_session",
    "make_seq_session",
    "make_tree_session",
    "model_facts",
]

Face = TypeVar("Face", bound=Cache)


class Session(CacheSession[Face]):
    """A context manager: `key` is where its `cache` is found in the registry until it is closed,
    `row` has the bytes. Tokens are those of `vocabulary` rows of the `model`'s embedding, positions
    those that it says it was made for, if it does.

    The model is shared by as many sessions as there are; what one of them remembers is all here.
    """

    def __init__(self, model: Any, cache: Face, row: PlannedRow, vocabulary: int) -> None:
        super().__init__(cache)
        self.row = row
        self._planner = cast(Planner, cache)
        self._model = model
        self._vocabulary = vocabulary
        self._positions = stated_positions(model) or math.inf

    def close(self) -> None:
        """Forget the key, and step no more; once or often. Who holds the cache goes on."""
        super().close()
        self._model = None

    @property
    def nbytes(self) -> int:
        """Bytes allocated for keys and values."""
        return self.row.nbytes

    def step(self, tokens: Sequence[int], positions: Sequence[int]) -> mx.array:
        """One forward of these tokens, each at its position: lazy logits [tokens, vocab].

        Raises InvalidStep, CacheFull, TokenOutOfRange before anything is done. If the model raises
        the cache is as before, and what was declared for the step stays so.
        """
        self._check_open()
        fed = self._checked(tokens, len(positions))
        # MLX takes Python's integers alone.
        asked = whole_numbers("a position", positions)
        self._check_positions(asked)
        plan = self._planner.plan(asked)
        try:
            logits = self.row.step(self._model, fed, asked, plan)
        except BaseException:
            self._planner.take_back()
            raise
        self._planner.end_step()
        return logits

    def _check_open(self) -> None:
        if self._model is None:
            raise InvalidStep(f"the session {self.key} was closed")

    def _checked(self, tokens: Sequence[int], positions: int) -> mx.array:
        if len(tokens) != positions:
            raise InvalidStep(f"a step of {len(tokens)} tokens was given {positions} positions")
        found = [whole(token) for token in tokens]
        for token, known in zip(tokens, found, strict=True):
            if known is None or not 0 <= known < self._vocabulary:
                raise TokenOutOfRange(
                    f"token {token!r} is not in [0, {self._vocabulary}), the model's embedding"
                )
        return mx.array(found, mx.int32)

    def _check_positions(self, asked: Sequence[int]) -> None:
        """Raise InvalidStep for one that a learned table lacks: it would be read without a word."""
        for position in asked:
            if position >= self._positions:
                raise InvalidStep(
                    f"position {position} is beyond the {self._positions} that the model says it "
                    "was made for"
                )

    def update_and_attend(
        self,
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        positions: Sequence[int],
        *,
        layer_id: int,
        scale: float,
        out_dtype: mx.Dtype | None = None,
    ) -> mx.array:
        """One layer of a step of a model that is not mlx-lm's [cache-family, 3.1].

        Args:
            queries: [1, heads, T, dim], `positions` already applied to them and to the keys.
            keys, values: [1, kv_heads, T, dim] of the new tokens: stored as the config says.
            layer_id: which layer it is; all layers of a step are asked, in any order.
            scale: what scores are multiplied by.
            out_dtype: of the result, whatever is stored; None: the queries'.

        Returns [1, heads, T, dim]. The next step begins with other positions or a verb of the
        cache. Raises InvalidStep, CacheFull before anything is done.
        """
        self._check_open()
        self.row.check([queries.shape, keys.shape, values.shape], len(positions), layer_id)
        asked = whole_numbers("a position", positions)
        plan = self._planner.plan(asked)
        return self.row.update_and_attend(
            queries,
            keys,
            values,
            asked,
            plan,
            layer_id=layer_id,
            scale=scale,
            out_dtype=out_dtype,
        )


def make_decode_session(
    model: Any, config: CacheConfig, *, attention: str = "auto"
) -> Session[DecodeCache]:
    """One sequence of tokens, which may be rewound, for an mlx-lm `model`; `config` says how large
    it may become and how it is stored, `attention` is as for AgentSystem.

    Raises InvalidConfig, UnsupportedLayer, ProbeFailed, FaceMismatch.
    """
    row, spec = _row(model, config, attention, _check_kept)
    return Session(model, build("contiguous", DecodeCache, config), row, spec.vocab_size)


def make_seq_session(
    model: Any, config: CacheConfig, *, attention: str = "auto"
) -> Session[SeqCache]:
    """Sequences that fork without a copy and step together; `model`, `config`, `attention` and
    errors as for `make_decode_session`."""
    row, spec = _row(model, config, attention, _check_flat)
    return Session(model, build("seq", SeqCache, config), row, spec.vocab_size)


def make_tree_session(
    model: Any, config: CacheConfig, *, attention: str = "auto"
) -> Session[TreeCache]:
    """Trees of candidates behind what is committed; `model`, `config`, `attention` and errors as
    for `make_decode_session`."""
    row, spec = _row(model, config, attention, _check_flat)
    cache = build("tree", TreeCache, config)
    faced(cache, Mover, "the builder of 'tree'").on_commit(row.gather_into)
    return Session(model, cache, row, spec.vocab_size)


def model_facts(model: Any) -> ModelFacts:
    """What `write_metadata` writes of an mlx-lm model, found out from a short forward. Raises
    UnsupportedLayer where layers differ, ModelError."""
    seam.install()
    layers, _ = derive_layers(model, ModelOptions(kv_bits=None))
    kept = [layer for layer in layers if layer.kind != "recurrent"]
    found = {ModelFacts(len(layers), layer.kv_heads, layer.head_dim) for layer in kept}
    if len(found) != 1:
        shapes = sorted(f"{one.n_kv_heads} x {one.head_dim}" for one in found)
        raise UnsupportedLayer(
            "one number of KV heads and one head dimension describe all layers: here they are "
            f"{', '.join(shapes) or 'none, since no layer keeps keys'}"
        )
    return found.pop()


def _row(
    model: Any, config: CacheConfig, attention: str, check: Callable[[ModelCacheSpec], None]
) -> tuple[PlannedRow, ModelCacheSpec]:
    options = ModelOptions(kv_bits=config.bits, group_size=config.group_size, attention=attention)
    seam.install()
    spec = derive_spec(model, options)
    check(spec)
    _check_facts(spec, config.facts)
    # How linear layers multiply is the user's own matter.
    policy = choose_policy(spec, options, faster_in_parts=lambda: False)
    return PlannedRow(spec, policy), spec


def _check_facts(spec: ModelCacheSpec, facts: ModelFacts) -> None:
    for index, layer in enumerate(spec.layers):
        found = ModelFacts(len(spec.layers), layer.kv_heads, layer.head_dim)
        if found != facts:
            raise InvalidConfig(
                f"the config is for {_described(facts)}: the model has {_described(found)} in "
                f"layer {index}"
            )


def _described(facts: ModelFacts) -> str:
    return f"{facts.n_layers} layers of {facts.n_kv_heads} KV heads with {facts.head_dim} numbers"


def _check_kept(spec: ModelCacheSpec) -> None:
    """Raise UnsupportedLayer where a layer cannot be rewound to any of its tokens."""
    for index, layer in enumerate(spec.layers):
        if layer.kind not in ("full", "latent"):
            raise UnsupportedLayer(
                f"layer {index} is {layer.kind}, and forgets tokens: what a session holds may be "
                "rewound or shared at any token, which needs full attention in every layer"
            )


def _check_flat(spec: ModelCacheSpec) -> None:
    """Raise UnsupportedLayer where tokens cannot stand at positions of their own."""
    _check_kept(spec)
    if not spec.flat:
        raise UnsupportedLayer(
            "the attention of this model is its own, or it is wrong where the rows of a batch "
            "stand at different positions: it can have a session of one sequence, and no forks"
        )
