"""The model that a stress test runs: small, random, exact in any order of sums, and breakable."""

from typing import Any

__all__ = ["StressModel"]


class StressModel:
    """A callable for `AgentSystem(model=...)`. Loads MLX on the GPU thread only."""

    name = "stress-model"

    def __init__(self) -> None:
        self._faulty: Any = None

    def __call__(self) -> tuple[Any, Any]:
        """A new copy of the same model."""
        from kvactors.core.testing import Faulty, PlainTokenizer, snap_to_grid, tiny_model

        self._faulty = Faulty(snap_to_grid(tiny_model(seed=1)))
        return self._faulty, PlainTokenizer()

    def fail(self, error: BaseException, step: int) -> None:
        """Raise in the `step`-th forward from now, once."""
        self._faulty.arm(step=step, error=error)
