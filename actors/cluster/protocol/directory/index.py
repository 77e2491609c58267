"""Which agents a round has to look at: those of a node, and those that may lack a replica."""

from collections import defaultdict

from kvactors.actors.cluster.protocol.records import Place

__all__ = ["Index"]

Agents = dict[str, None]


class Index:
    """Of all places, kept with each change. Names alone, in the order in which they came: whoever
    acts looks at the place again."""

    def __init__(self) -> None:
        self.owned: defaultdict[str, Agents] = defaultdict(dict)
        """By owner."""
        self.kept: defaultdict[str, Agents] = defaultdict(dict)
        """By replica, where there is one."""
        self.single: Agents = {}
        """Those without a replica that need one; who was never used has nothing to lose."""

    def put(self, before: Place | None, after: Place | None) -> None:
        """A place was `before`, and is `after`; None: there is none."""
        if before is not None:
            self._remove(before)
        if after is not None:
            self._add(after)

    def _add(self, place: Place) -> None:
        self.owned[place.node][place.agent] = None
        if place.replica is not None:
            self.kept[place.replica][place.agent] = None
        elif not place.fresh:
            self.single[place.agent] = None

    def _remove(self, place: Place) -> None:
        del self.owned[place.node][place.agent]
        if place.replica is not None:
            del self.kept[place.replica][place.agent]
        elif not place.fresh:
            del self.single[place.agent]
