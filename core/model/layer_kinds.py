"""Which kind of cache each layer of a model needs, found out from the model itself.

No table of model names: the model makes its own caches, and one forward over them shows what
is stored, and what reaches the seam of `kvactors.core.attention.attend`. Where the model's
attention is given just what its cache returned, with a mask that its cache made, the cache may
decide how it is attended; elsewhere it is `plain`, and gets float arrays. GPU thread.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    KVCache,
    RotatingKVCache,
    make_prompt_cache,
)

from kvactors.core.attention.seam import Call, watch_calls
from kvactors.core.cache.kv_bits import bits_of, check_named
from kvactors.core.cache.spec import UNUSED, LayerSpec, Side, choose_group_size
from kvactors.core.errors import GroupSizeMismatch, ModelError, UnsupportedLayer
from kvactors.core.model.options import ModelOptions

__all__ = ["derive_layers"]

# Of a chunked cache every token is kept: which of them are seen is in the model's own mask.
_SUPPORTED = (KVCache, RotatingKVCache, ArraysCache, ChunkedKVCache)
_KINDS = "full attention (KVCache), sliding windows (RotatingKVCache), states (ArraysCache)"
_PROBE = ([1, 2, 3], [1, 2, 3, 2, 1])


@dataclass(slots=True, eq=False)
class _Watched:
    """One cache of a model, and what it gave away during a forward."""

    index: int
    place: int | None
    cache: Any
    given: list[tuple[mx.array, mx.array]] = field(default_factory=list)
    masks: list[tuple[Any, int | None]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Which of the model's caches it is."""
        return f"layer {self.index}" + ("" if self.place is None else f"[{self.place}]")

    def watch(self) -> None:
        """Note what the cache returns from now on."""
        for name in ("update_and_fetch", "keys_and_values"):
            setattr(self.cache, name, self._noting(getattr(self.cache, name)))
        make_mask = getattr(self.cache, "make_mask", None)
        if make_mask is None:
            return

        def noting_mask(
            tokens: int,
            return_array: bool = False,  # noqa: FBT001, FBT002 - mlx-lm's signature
            window_size: int | None = None,
        ) -> Any:
            # An array even where none is asked: one can tell it again.
            mask = make_mask(tokens, return_array=True, window_size=window_size)
            self.masks.append((mask, window_size))
            return mask

        self.cache.make_mask = noting_mask

    def _noting(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*arrays: mx.array) -> Any:
            fetched = method(*arrays)
            self.given.append(fetched)
            return fetched

        return noting

    def gave(self, keys: Any, values: Any) -> bool:
        """Whether these very arrays came from the cache together."""
        return any(keys is one and values is other for one, other in self.given)


def derive_layers(
    model: Any, options: ModelOptions
) -> tuple[tuple[LayerSpec, ...], tuple[int, ...]]:
    """The spec of each layer cache, and how the model nests them (ModelCacheSpec.nesting).

    Raises UnsupportedLayer naming the layer, its kind and what would be needed; ModelError.
    """
    watched, nesting = _caches(model)
    calls = _run(model, watched, _PROBE[0])
    other, _ = _caches(model)
    _run(model, other, _PROBE[1])
    masks = [entry for each in watched for entry in each.masks]
    layers: list[LayerSpec] = []
    for one, two in zip(watched, other, strict=True):
        if isinstance(one.cache, ArraysCache):
            layers.append(_recurrent(one, two))
        elif one.given:
            layers.append(_attention(len(layers), one, calls, masks, options))
        elif one.place is None:
            nesting[one.index] = UNUSED
        else:
            raise UnsupportedLayer(f"{one.name} does not use its cache, one of several")
    check_named(options.kv_bits, layers)
    return tuple(layers), tuple(nesting) if any(nesting) else ()


def _caches(model: Any) -> tuple[list[_Watched], list[int]]:
    watched: list[_Watched] = []
    nesting: list[int] = []
    for index, cache in enumerate(make_prompt_cache(model)):
        inner = cache.caches if type(cache) is CacheList else (cache,)
        nesting.append(len(inner) if type(cache) is CacheList else 0)
        for place, leaf in enumerate(inner):
            watched.append(_Watched(index, place if nesting[-1] else None, leaf))
            _check_kind(watched[-1].name, leaf)
    return watched, nesting


def _check_kind(name: str, cache: Any) -> None:
    if type(cache) not in _SUPPORTED:
        raise UnsupportedLayer(
            f"{name} caches with {type(cache).__name__}: supported are {_KINDS} and lists of "
            "these (CacheList); another kind needs a layer cache of its own in kvactors"
        )
    if type(cache) is RotatingKVCache and cache.keep:
        raise UnsupportedLayer(
            f"{name} caches with RotatingKVCache(keep={cache.keep}): a window that keeps its "
            "first tokens would need them stored beside it; only keep=0 is supported"
        )


def _run(model: Any, watched: Sequence[_Watched], tokens: Sequence[int]) -> list[Call]:
    """A forward over the model's own caches; what reached the seam meanwhile."""
    caches = iter(each.cache for each in watched)
    nested = [
        CacheList(*(next(caches) for _ in cache.caches))
        if type(cache) is CacheList
        else next(caches)
        for cache in make_prompt_cache(model)
    ]
    for each in watched:
        if not isinstance(each.cache, ArraysCache):
            each.watch()
    try:
        with watch_calls() as calls:
            mx.eval(model(mx.array([tokens]), cache=nested))
    except Exception as error:
        raise ModelError(
            f"the model cannot run a forward of {len(tokens)} tokens over its own caches: {error}"
        ) from error
    return calls


def _recurrent(one: _Watched, two: _Watched) -> LayerSpec:
    arrays, others = one.cache.cache, two.cache.cache
    if any(array is None for array in arrays):
        raise UnsupportedLayer(f"{one.name} does not use all of its states (ArraysCache)")
    if [array.shape for array in arrays] != [array.shape for array in others]:
        raise UnsupportedLayer(
            f"{one.name} has states (ArraysCache) that grow with the tokens: only those of a fixed "
            "size are supported"
        )
    states = tuple((tuple(array.shape[1:]), _dtype(array)) for array in arrays)
    return LayerSpec("recurrent", 0, 0, None, None, states[0][1], states=states)


def _attention(
    index: int,
    watched: _Watched,
    calls: Sequence[Call],
    masks: Sequence[tuple[Any, int | None]],
    options: ModelOptions,
) -> LayerSpec:
    keys, values = watched.given[-1]
    if keys.shape[1] != values.shape[1]:
        raise UnsupportedLayer(
            f"{watched.name} has {keys.shape[1]} heads of keys and {values.shape[1]} of values: "
            "they must be equally many"
        )
    mine = [mask for *given, mask in calls if watched.gave(*given)]
    windows = [size for mask in mine for made, size in masks if made is mask]
    plain = not mine or any(not _made(mask, masks) for mask in mine)
    # What the mask says is the model's window; the cache may be sized to something near it.
    window = min((size for size in windows if size), default=None)
    if window is None and isinstance(watched.cache, RotatingKVCache):
        window = watched.cache.max_size
    dims = [array.shape[-1] for array in (keys, values)]
    latent = plain and keys.shape[1] == 1 and all(dims) and dims[0] != dims[1] and window is None
    kind = "latent" if latent else "full" if window is None else "sliding"
    both = zip(dims, bits_of(options.kv_bits, index, kind), strict=True)
    try:
        sides = [_side(dim, bits, options.group_size) for dim, bits in both]
    except GroupSizeMismatch as error:
        raise GroupSizeMismatch(f"{watched.name}, {kind}: {error}") from None
    return LayerSpec(
        kind=kind,
        kv_heads=keys.shape[1],
        head_dim=sides[0].dim,
        bits=sides[0].bits,
        group_size=sides[0].group_size,
        dtype=_dtype(keys),
        values=None if sides[0] == sides[1] else sides[1],
        window=window,
        plain=plain,
    )


def _made(mask: Any, masks: Sequence[tuple[Any, int | None]]) -> bool:
    """Whether a mask says no more than the cache that made it knows."""
    return not isinstance(mask, mx.array) or any(made is mask for made, _ in masks)


def _side(dim: int, bits: int | None, asked: int | None) -> Side:
    group = choose_group_size(dim, bits, asked)
    return Side(dim, bits if group is not None else None, group)


def _dtype(array: mx.array) -> str:
    return str(array.dtype).rpartition(".")[2]
