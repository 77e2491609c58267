"""The names of all agents in their order, for whoever reads them page by page."""

from bisect import bisect_left, bisect_right

__all__ = ["Names"]


class Names:
    """A page costs what is on it, and what has come since the last one."""

    def __init__(self) -> None:
        self._ordered: list[str] = []
        self._fresh: list[str] = []

    def add(self, name: str) -> None:
        """One that is not there."""
        self._fresh.append(name)

    def remove(self, name: str) -> None:
        """One that is there."""
        self._settle()
        del self._ordered[bisect_left(self._ordered, name)]

    def page(self, after: str, count: int) -> list[str]:
        """Up to `count` that follow `after`."""
        self._settle()
        start = bisect_right(self._ordered, after)
        return self._ordered[start : start + count]

    def _settle(self) -> None:
        if self._fresh:
            # Two runs in order: they are merged.
            self._ordered += sorted(self._fresh)
            self._ordered.sort()
            self._fresh.clear()
