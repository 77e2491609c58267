"""The messages that the GPU actor takes: immutable, without logic, a line under each field."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvactors.core.cache.segment import RawTensor, Segment
from kvactors.core.cache.spec import LayerSpec
from kvactors.core.engine.launch import Launch
from kvactors.core.model.info import ModelInfo
from kvactors.core.schedule.request import Request

__all__ = [
    "Cancel",
    "Check",
    "EncodeFloats",
    "Forget",
    "ForkCache",
    "LoadModel",
    "PrefetchKV",
    "ReadStats",
    "ReadTurns",
    "Restored",
    "Saved",
    "Step",
    "SwapModel",
    "Swapped",
    "Tick",
    "Wire",
]


@dataclass(frozen=True, slots=True)
class LoadModel:
    """To the GPU actor, by ask: load, probe, start the engine; answers ModelInfo."""

    launch: Launch
    """How."""


@dataclass(frozen=True, slots=True)
class SwapModel:
    """To the GPU actor, by ask, while no turn runs: exchange the model; answers Swapped."""

    launch: Launch
    """The new one."""
    fallback: Launch
    """The one that is loaded, to go back to."""


@dataclass(frozen=True, slots=True)
class Swapped:
    """What is loaded after a SwapModel."""

    model: ModelInfo
    """The new model, or the old one again."""
    error: Exception | None = None
    """Why it is the old one."""


@dataclass(frozen=True, slots=True)
class Wire:
    """To the GPU actor, by ask: who reads and writes for it."""

    persistence: Any
    """ActorRef of the persistence actor."""


@dataclass(frozen=True, slots=True)
class Step:
    """To the GPU actor: one turn to run."""

    request: Request
    """The record of the turn; the engine owns it from now on."""
    agent: Any
    """ActorRef of the agent, for tokens and the end."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """To the GPU actor: end a running turn at the next step."""

    agent_id: str
    """Whose turn."""
    serial: int
    """Which one."""
    error: Exception | None = None
    """Fail it with this and leave no trace, instead of replying with what there is."""


@dataclass(frozen=True, slots=True)
class Tick:
    """The GPU actor to itself: run the next plan."""


@dataclass(frozen=True, slots=True)
class PrefetchKV:
    """To the GPU actor: read an agent's KV ahead of its next turn, if there is room."""

    agent_id: str
    """Whose."""
    token_ids: tuple[int, ...]
    """All that it remembers."""


@dataclass(frozen=True, slots=True)
class ForkCache:
    """To the GPU actor: let a new agent begin with another one's hot cache."""

    parent: str
    """Whose cache."""
    child: str
    """Who begins with it."""


@dataclass(frozen=True, slots=True)
class Forget:
    """To the GPU actor, by ask: drop an agent's hot cache."""

    agent_id: str
    """Whose."""


@dataclass(frozen=True, slots=True)
class Restored:
    """To the GPU actor: what the store had for an agent, maybe nothing."""

    agent_id: str
    """Whose."""
    fingerprint: str
    """Of which model."""
    stored: Sequence[Segment]
    """Contiguous from token 0."""


@dataclass(frozen=True, slots=True)
class Saved:
    """To the GPU actor: KV no longer waits to be written, or will not be."""

    agent_id: str
    """Whose."""
    nbytes: int
    """Bytes that no longer wait."""
    limit: int | None = None
    """Tokens of KV that the store has, if it has not all that it was given."""
    fingerprint: str | None = None
    """Of which model it has no more, where that may not be the one that is loaded."""


@dataclass(frozen=True, slots=True)
class ReadStats:
    """To the GPU actor, by ask: counts and bytes, and the ids of the agents in memory."""

    held: tuple[str, ...] | None = None
    """Instead HeldAgent by id, of these agents, or of every one if none is named: how much of each
    is in memory."""


@dataclass(frozen=True, slots=True)
class ReadTurns:
    """To the GPU actor, by ask: the turns that run or wait there, and how far they are."""


@dataclass(frozen=True, slots=True)
class Check:
    """To the GPU actor, by ask: prove the engine's bookkeeping. For tests."""


@dataclass(frozen=True, slots=True)
class EncodeFloats:
    """To the GPU actor, by ask: float KV of one layer as the model stores it, RawTensors."""

    layer: LayerSpec
    """Its form."""
    floats: RawTensor
    """[2, kv_heads, tokens, head_dim]."""
