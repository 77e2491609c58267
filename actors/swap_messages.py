"""The messages of a model swap: immutable, without logic, a line under each field."""

from dataclasses import dataclass

from kvactors.actors.futures import ReplyFuture
from kvactors.actors.launch import Launch, ModelInfo

__all__ = ["Adopt", "Pause", "SwapModel", "Swapped"]


@dataclass(frozen=True, slots=True)
class Pause:
    """To an agent: begin no turn until Adopt; the one that runs ends first."""

    done: ReplyFuture[bool]
    """Resolves when none runs, or the agent is gone."""

    def reject(self) -> None:
        """The agent is gone."""
        self.done.resolve(False)


@dataclass(frozen=True, slots=True)
class Adopt:
    """To an agent: remember under this model from now on, and take turns again."""

    model: ModelInfo
    """The one that is loaded."""
    done: ReplyFuture[bool]
    """Resolves when it does, or is gone."""

    def reject(self) -> None:
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
