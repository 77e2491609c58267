"""The messages about the model: immutable, without logic, a line under each field."""

from dataclasses import dataclass

from kvactors.actors.futures import ReplyFuture
from kvactors.actors.launch import Launch
from kvactors.core.info import ModelInfo
from kvactors.core.spec import LayerSpec
from kvactors.persistence.segment import RawTensor

__all__ = ["Adopt", "EncodeFloats", "LoadModel", "Pause", "SwapModel", "Swapped"]


@dataclass(frozen=True, slots=True)
class LoadModel:
    """To the GPU actor, by ask: load, probe, start the engine; answers ModelInfo."""

    launch: Launch
    """How."""


@dataclass(frozen=True, slots=True)
class EncodeFloats:
    """To the GPU actor, by ask: float KV of one layer as the model stores it, RawTensors."""

    layer: LayerSpec
    """Its form."""
    floats: RawTensor
    """[2, kv_heads, tokens, head_dim]."""


@dataclass(frozen=True, slots=True)
class Pause:
    """To an agent: begin no turn until Adopt; the one that runs ends first."""

    done: ReplyFuture[bool]
    """Resolves when none runs, or the agent is gone."""

    def reject(self, _error: BaseException | None = None) -> None:
        """The agent is gone."""
        self.done.resolve(False)


@dataclass(frozen=True, slots=True)
class Adopt:
    """To an agent: remember under this model from now on, and take turns again."""

    model: ModelInfo
    """The one that is loaded."""
    done: ReplyFuture[bool]
    """Resolves when it does, or is gone."""

    def reject(self, _error: BaseException | None = None) -> None:
        """The agent is gone."""
        self.done.resolve(False)


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
