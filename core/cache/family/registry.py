"""Where caches are found by name, and made by kind [cache-family, 4.3]. Any thread.

Whoever runs a model and whoever computes its attention may not know each other: they meet on a key.
A cache that is taken from the registry goes on to work when its key is erased.
"""

import threading
from collections.abc import Callable
from itertools import count
from typing import TypeVar, cast

from kvactors.core.cache.family.config import CacheConfig
from kvactors.core.cache.family.contiguous import ContiguousBookkeeping
from kvactors.core.cache.family.faces import Cache, Planner
from kvactors.core.cache.family.sequences import SeqBookkeeping
from kvactors.core.cache.family.tree import TreeBookkeeping
from kvactors.core.errors import FaceMismatch, InvalidConfig

__all__ = ["Builder", "CacheRegistry", "build", "builders", "faced", "registry"]

Face = TypeVar("Face")
FaceType = Callable[..., Face]
"""A protocol: not `type[Face]`, which is for classes that have instances of their own."""
Builder = Callable[[CacheConfig], Cache]

builders: dict[str, Builder] = {
    "contiguous": lambda config: ContiguousBookkeeping(config.capacity),
    "seq": lambda config: SeqBookkeeping(config.capacity),
    "tree": lambda config: TreeBookkeeping(config.capacity),
}
"""What makes the cache of a kind: put another one here to have sessions with a cache of yours."""


def build(kind: str, face: FaceType[Face], config: CacheConfig) -> Face:
    """A cache of this `kind`, sized as `config` says, that has this `face`. Raises FaceMismatch if
    what its builder makes has not, or makes no plans."""
    cache = builders[kind](config)
    faced(cache, Planner, f"the builder of {kind!r}")
    return faced(cache, face, f"the builder of {kind!r}")


def faced(cache: object, face: FaceType[Face], whose: str) -> Face:
    """The cache, known to have this `face`. Raises FaceMismatch that says `whose` it is."""
    protocol = cast(type[Face], face)
    if isinstance(cache, protocol):
        return cache
    lacks = [name for name in dir(face) if name[0] != "_" and not hasattr(cache, name)]
    raise FaceMismatch(
        f"{whose} gives a {type(cache).__name__}, which is no {protocol.__name__}: it lacks "
        f"{', '.join(lacks)}"
    )


class CacheRegistry:
    """Caches under keys, each of which is given once in a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._caches: dict[str, Cache] = {}

    def __len__(self) -> int:
        return len(self._caches)

    def install(self, cache: Cache) -> str:
        """Keep a cache; its key."""
        with self._lock:
            key = f"cache-{next(self._numbers)}"
            self._caches[key] = cache
        return key

    def get(self, key: str, face: FaceType[Face]) -> Face:
        """The cache of a key, as a `face`. Raises InvalidConfig if there is none, FaceMismatch if
        it is of another kind."""
        with self._lock:
            cache = self._caches.get(key)
        if cache is None:
            raise InvalidConfig(f"no cache has the key {key!r}: its session ended, or never began")
        return faced(cache, face, f"the key {key!r}")

    def erase(self, key: str) -> None:
        """Forget a key. Whoever holds its cache goes on; a key that is gone stays so."""
        with self._lock:
            self._caches.pop(key, None)


registry = CacheRegistry()
"""The one of this process."""
