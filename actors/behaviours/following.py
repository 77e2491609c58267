"""Who follows what: subscribers a topic, watchers the behaviour of an agent."""

from collections.abc import Hashable
from typing import Any, Generic, TypeVar

__all__ = ["Following"]

W = TypeVar("W", bound=Hashable)


class Following(Generic[W]):
    """Who follows what, in the order in which they began to; both ways, so that an end walks no
    others. Under a lock of whoever has it."""

    def __init__(self) -> None:
        self._followers: dict[str, dict[W, None]] = {}
        self._followed: dict[W, dict[str, None]] = {}

    def add(self, what: str, who: W) -> None:
        """One that follows it already goes on."""
        self._followers.setdefault(what, {})[who] = None
        self._followed.setdefault(who, {})[what] = None

    def discard(self, what: str, who: W) -> None:
        """One that does not follow it goes on so."""
        _discard(self._followers, what, who)
        _discard(self._followed, who, what)

    def of(self, what: str) -> list[W]:
        """Who follows it."""
        return list(self._followers.get(what, ()))

    def leave(self, who: W) -> None:
        """One follows nothing any more."""
        for what in list(self._followed.get(who, ())):
            self.discard(what, who)

    def end(self, what: str) -> list[W]:
        """Nobody follows it any more; who did."""
        followers = self.of(what)
        for who in followers:
            self.discard(what, who)
        return followers

    def all(self) -> tuple[set[str], set[W]]:
        """All that is followed, and who follows anything; proves that both ways say the same."""
        pairs = {(what, who) for what, whose in self._followers.items() for who in whose}
        back = {(what, who) for who, whose in self._followed.items() for what in whose}
        assert pairs == back, "one way says that somebody follows, the other does not"
        return set(self._followers), set(self._followed)


def _discard(sets: dict[Any, dict[Any, None]], key: object, member: object) -> None:
    members = sets.get(key, {})
    members.pop(member, None)
    if not members:
        sets.pop(key, None)
