"""One layer's keys and values of the rows that run together, as a model steps them. GPU thread."""

import sys
from typing import Any

import mlx.core as mx

from kvactors.core.arena.kv_rows import KVRows
from kvactors.core.arena.step import StepGeometry
from kvactors.core.attention.attend import attend, attend_together
from kvactors.core.attention.attend_spec import AttendSpec
from kvactors.core.attention.plan import AttendPlan
from kvactors.core.attention.policy import UNPACK_ROWS, AttentionPath, AttentionPolicy
from kvactors.core.cache.slots import SlotTable
from kvactors.core.cache.spec import LayerSpec, Side
from kvactors.core.errors import UnsupportedLayer
from kvactors.core.quant.codec import Stored, to_float

__all__ = ["KVLayer"]


class KVLayer:
    """Keys and values of full or sliding attention, quantized or float, in one pool per slab.

    Attention goes through the seam, or, where the model's own is `plain`, over float arrays and
    a mask of the form `masks` that fits them. Rows stand as `table` says, are stored as `layer`
    says, and attend by `policy`; where they are not `batched` each runs alone. `place` is where
    pieces have the layer.
    """

    def __init__(
        self,
        table: SlotTable,
        layer: LayerSpec,
        policy: AttentionPolicy,
        *,
        place: tuple[int, int] = (0, 0),
        masks: str | None = None,
        batched: bool = True,
    ) -> None:
        self.table = table
        self.layer = layer
        self.policy = policy
        self.rows = KVRows(table, layer, place)
        self.geometry: StepGeometry | None = None
        # Some models tie these into their graph, so that the cache is evaluated with it.
        self.keys = self.values = mx.zeros(())
        self._masks = masks
        self._batched = batched
        # Query heads per KV head: too many for floats until the first step shows it, and whether
        # there are sinks.
        self._repeats = sys.maxsize
        self._sinks = True

    # -- what models call ------------------------------------------------------------

    # Of mlx-lm's chunked cache: the position of its first token, which never leaves here.
    start_position = 0

    def maybe_trim_front(self) -> None:
        """Nothing: what a query sees is in the model's mask."""

    @property
    def offset(self) -> Any:
        """The position of each row's next token, [B], int32; an int where rows run alone."""
        if self.geometry is None:
            return mx.array(self.table.lengths)
        return self.geometry.offset if self._batched else self.geometry.starts[0][0]

    @property
    def dtype(self) -> Any:
        """What attention returns: models ask it of what `update_and_fetch` gave them."""
        return getattr(mx, self.layer.dtype)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Any, Any]:
        """Store [B, kv_heads, T, dim] at each row's own position.

        Returns the cache itself twice, which only the seam of `kvactors.core.attention.attend` can
        read; or, where attention is plain, float arrays padded to the longest row.
        """
        geometry = self.geometry
        assert geometry is not None, "a layer steps through its Arena"
        new = zip(geometry.apart(keys), geometry.apart(values), strict=True)
        reaches = geometry.reaches(self.layer)
        for slab, (keys, values), reach in zip(geometry.slabs, new, reaches, strict=True):
            self.rows.pools[slab].write(keys, values, reach.cells)
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[Any, Any]:
        """What `update_and_fetch` returned last, for a layer that shares this one's."""
        return self._floats() if self.layer.plain else (self, self)

    def attend(
        self,
        queries: mx.array,
        mask: Any,
        *,
        scale: float,
        sinks: mx.array | None,
        out_dtype: mx.Dtype | None = None,
    ) -> mx.array:
        """Attention of `queries` [B, heads, T, head_dim], their scores times `scale`, over what
        each row holds; `sinks` [heads] take weight. Returns [B, heads, T, value_dim], as
        `out_dtype` or as the queries are.

        `mask` is the model's: only one that a cache of this step made says no more than the
        cache knows. Raises UnsupportedLayer for another, such as of chosen keys.
        """
        geometry, layer = self.geometry, self.layer
        assert geometry is not None
        if isinstance(mask, mx.array) and not geometry.made(mask):
            raise UnsupportedLayer(
                f"attention of a {layer.kind} layer was given a mask of the model's own, which it "
                "did not show at load: it would need the layer's keys as floats"
            )
        self._repeats, self._sinks = queries.shape[1] // layer.kv_heads, sinks is not None
        precision = getattr(mx, self.policy.precision)
        parts = []
        for index, asked in enumerate(geometry.apart(queries)):
            folded = geometry.folded(index, asked)
            path = self.policy.path(folded.shape[2], self._repeats)
            spec, keys = self._seen(index, path, folded.shape[2], out_dtype)
            plan = spec.plan(path, scale, sinks, precision)
            parts.append(geometry.unfolded(index, self._attended(index, folded, keys, plan)))
        return parts[0] if len(parts) == 1 else mx.concatenate(parts)

    def _seen(
        self, index: int, path: AttentionPath, tokens: int, out_dtype: mx.Dtype | None
    ) -> tuple[AttendSpec, int]:
        """What one slab's queries see, and how many keys are read. Rows that end together need no
        mask, if the sum of a row may be another than beside longer ones."""
        geometry = self.geometry
        assert geometry is not None
        reach = geometry.reaches(self.layer)[index]
        fixed = path == "packed" or self.policy.reproducible or geometry.shared[index]
        fixed = fixed or geometry.whole
        if reach.end is None or fixed:
            return AttendSpec(reach.mask, out_dtype), reach.extent
        return AttendSpec.of_run(tokens, out_dtype), reach.end

    def _attended(self, index: int, queries: mx.array, keys: int, plan: AttendPlan) -> mx.array:
        """One slab's part: `queries` [n, heads, T, head_dim] of its rows."""
        geometry, layer = self.geometry, self.layer
        assert geometry is not None
        pool, shared = self.rows.pools[geometry.slabs[index]], geometry.shared[index]
        rows, tokens = len(queries), queries.shape[2]
        alike = layer.window is None and plan.sinks is None
        asked = self._repeats * tokens
        # A row that takes many tokens by itself reads what it begins with once in any case.
        few = tokens == 1 or (rows > 1 and asked <= UNPACK_ROWS)
        apart = pool.trunk.end > 0
        if alike and few and self.policy.together(rows, asked, shared, apart=apart):
            stored = pool.read(rows, keys, floats=plan.unpack, own=True)
            prefix = pool.prefix_floats(shared, plan.precision)
            return attend_together(queries, stored, prefix, plan)
        return attend(queries, pool.read(rows, keys, floats=plan.unpack), plan)

    def make_mask(self, *_args: Any, return_array: bool = False, **_kwargs: Any) -> Any:
        """None where the cache decides how it is attended."""
        if self._masks is None:
            return None
        geometry = self.geometry
        assert geometry is not None
        if not self._batched:
            # As mlx-lm's own: a single query that sees every key needs none, even if asked for.
            if self.layer.window is None and geometry.width == 1:
                return None
            if self.layer.window is None and not return_array:
                return "causal"
            # [T, keys]: any shape of scores takes it.
            mask = geometry.reaches(self.layer)[0].mask[0, 0, :, : self._held(geometry)]
            return geometry.note(mask)
        mask = geometry.reaches(self.layer)[0].mask
        if self._masks == "groups":
            mask = mask[:, :, None]
        elif self._masks == "added":
            dtype = getattr(mx, self.layer.dtype)
            mask = mx.where(mask, 0.0, mx.finfo(dtype).min).astype(dtype)
        return geometry.note(mask)

    def _held(self, geometry: StepGeometry) -> int:
        """Cells that a row which runs alone has filled after this step."""
        end = geometry.starts[0][0] + geometry.width
        return end if self.layer.cells is None else min(end, self.layer.cells)

    def _floats(self) -> tuple[mx.array, mx.array]:
        geometry = self.geometry
        assert geometry is not None
        (slab,) = geometry.slabs
        extent = geometry.reaches(self.layer)[0].extent
        if not self._batched:
            extent = self._held(geometry)
        stored = self.rows.pools[slab].read(geometry.rows, extent)
        keys, values = stored.sides
        return (
            self._plain(stored.keys, keys, geometry.rows, extent),
            self._plain(stored.values, values, geometry.rows, extent),
        )

    def _plain(self, stored: Stored, side: Side, rows: int, extent: int) -> mx.array:
        dtype = getattr(mx, self.layer.dtype)
        if side.dim == 0:
            return mx.zeros((rows, self.layer.kv_heads, extent, 0), dtype)
        return to_float(stored, side).squeeze(0).astype(dtype)

    # -- what an Arena calls -----------------------------------------------------------

    def begin(self, geometry: StepGeometry) -> None:
        """A step begins: allocate what it needs."""
        self.geometry = geometry
        self.rows.begin(geometry, floats=self._wants_floats)

    @property
    def known(self) -> bool:
        """Whether a step has shown how the model attends."""
        return self.layer.plain or self._repeats < sys.maxsize

    @property
    def _wants_floats(self) -> bool:
        return not self.layer.plain and self.policy.unpacks(1, self._repeats)

    def reads_once(self, rows: int) -> bool:
        """Whether decode steps of so many rows are known to read a trunk once for all of them."""
        if self.layer.window is not None:
            return True
        return not self._sinks and self.policy.reads_once(rows, self._repeats, apart=True)

    @property
    def float_bytes(self) -> int:
        """Bytes more that steps would take to keep what codes say as floats."""
        return self.rows.float_bytes if self._wants_floats else 0

    @property
    def nbytes(self) -> int:
        """Bytes allocated, padding and spare slots included."""
        return self.rows.nbytes

    @property
    def state(self) -> list[Any]:
        """Every array, for `mx.eval`."""
        return self.rows.state
