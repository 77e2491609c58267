"""The bytes behind the op where torch runs it: keys and values by layer and cell, where the plans
of a cache put them [cache-family, 4.2]. On the thread that runs the program."""

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from kvactors.core.cache.family.faces import Mover, Planner
from kvactors.core.cache.family.step_plan import StepPlan, check_shapes
from kvactors.core.errors import InvalidStep

__all__ = ["Cells", "answering", "who_answers"]


class Cells:
    """What the tokens of a `cache` left, of the dtype in which it came. Attention is computed in
    float64, whatever is stored: others are judged by it."""

    def __init__(self, cache: Planner) -> None:
        # Weakly: the cache may hold these, to move them.
        self._cache = weakref.proxy(cache)
        self._stored: dict[tuple[int, str], Tensor] = {}
        self._plan: StepPlan | None = None
        self._sees = torch.empty(0)
        if isinstance(cache, Mover):
            cache.on_commit(self.gather_into)

    @classmethod
    def of(cls, cache: Planner) -> "Cells":
        """Those of a `cache`: of all programs that are loaded with it."""
        if cache not in _known:
            _known[cache] = cls(cache)
        return _known[cache]

    def update_and_attend(
        self,
        new: tuple[Tensor, Tensor, Tensor],
        positions: Sequence[int],
        *,
        layer_id: int,
        scale: float,
        out_dtype: torch.dtype,
    ) -> Tensor:
        """One layer of a step.

        Args:
            new: queries [1, heads, T, dim], keys and values [1, kv_heads, T, dim].
            positions: those of the T tokens. All layers of a step give the same.
            layer_id: whose keys and values these are.
            scale: what scores are multiplied by.
            out_dtype: of the result, whatever is stored.

        Returns [1, heads, T, dim]. Raises InvalidStep, CacheFull before anything is stored.
        """
        queries, keys, values = new
        check_shapes([tuple(one.shape) for one in new], len(positions))
        plan = self._cache.plan(positions)
        if plan is not self._plan:
            self._plan, self._sees = plan, _visible(plan)
        attended = scaled_dot_product_attention(
            queries.double(),
            self._written(layer_id, "k", plan, keys).double(),
            self._written(layer_id, "v", plan, values).double(),
            attn_mask=self._sees,
            scale=scale,
            enable_gqa=True,
        )
        return attended.to(out_dtype)

    def _written(self, layer_id: int, side: str, plan: StepPlan, new: Tensor) -> Tensor:
        """The cells that a step reads of one side of a layer, [1, kv_heads, cells, dim], its new
        ones written."""
        stored = self._stored.get((layer_id, side), new[:, :, :0])
        more = max(plan.cells) + 1 - stored.shape[2]
        if more > 0:
            stored = pad(stored, (0, 0, 0, max(more, stored.shape[2])))
        stored[:, :, list(plan.cells)] = new
        self._stored[layer_id, side] = stored
        return stored[:, :, : plan.read]

    def gather_into(self, base: int, cells: Sequence[int]) -> None:
        """Bring the bytes of `cells` to base, base + 1, ...: they were committed."""
        for stored in self._stored.values():
            stored[:, :, base : base + len(cells)] = stored[:, :, list(cells)]


def _visible(plan: StepPlan) -> Tensor:
    """Which cells each token of a step sees, [T, cells]."""
    rows = [plan.row(token) for token in range(len(plan.cells))]
    return torch.tensor([[row >> cell & 1 for cell in range(plan.read)] for row in rows]).bool()


_known: "weakref.WeakKeyDictionary[Planner, Cells]" = weakref.WeakKeyDictionary()
_answering: ContextVar[Cells] = ContextVar("_answering")


@contextmanager
def answering(cells: Cells) -> Iterator[None]:
    """While it lasts, the op asks these `cells`."""
    token = _answering.set(cells)
    try:
        yield
    finally:
        _answering.reset(token)


def who_answers() -> Cells:
    """Those that the op asks now. Raises InvalidStep where there are none."""
    try:
        return _answering.get()
    except LookupError:
        raise InvalidStep(
            "update_and_attend has no cache here: run the program with "
            "Loaded(program, session.key).execute(tokens, positions)"
        ) from None
