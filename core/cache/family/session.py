"""A cache that is found by its key for as long as it is used [cache-family, 4.3]. Any thread."""

import weakref
from types import TracebackType
from typing import Generic, Self, TypeVar

from kvactors.core.cache.family.faces import Cache
from kvactors.core.cache.family.registry import registry

__all__ = ["CacheSession"]

Face = TypeVar("Face", bound=Cache)


class CacheSession(Generic[Face]):
    """A context manager: `key` is where its `cache` is found in the registry until it is closed."""

    def __init__(self, cache: Face) -> None:
        self.cache = cache
        self.key = registry.install(cache)
        # However it ends, collected or with the process.
        self._erase = weakref.finalize(self, registry.erase, self.key)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Forget the key, once or often. Who holds the cache goes on."""
        self._erase()
