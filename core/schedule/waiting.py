"""WaitingTurns: the queue of turns that wait to be admitted, in the order in which they may start.

A turn's priority rises by one whenever it was passed over PATIENCE times, so the order changes
while turns wait; but never among those that entered at the same admission, counted modulo
PATIENCE. Each of these classes is a sorted list, and the next turns are those that a merge of
the classes gives first: nothing that a step does depends on how many wait. With PATIENCE 8:

    turn   entered   class   key within the class, that never changes    at admission 17
    a         0        0     (0 // 8 - priority, arrival)                priority + 2
    b         9        1     (9 // 8 - priority, arrival)                priority + 1
    c        16        0     (16 // 8 - priority, arrival)               priority

Pure, no clock, no MLX.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import chain, islice

from kvactors.core.schedule.request import Request

__all__ = ["PATIENCE", "WaitingTurns"]

# Admissions of others that raise a waiting turn's priority by one.
PATIENCE = 8


class WaitingTurns:
    """Turns by rank, and by agent. Owned by one thread.

    Adding and removing takes log n comparisons, the first turns take the same however many wait.
    """

    def __init__(self) -> None:
        self._classes: list[list[Request]] = [[] for _ in range(PATIENCE)]
        self._of: dict[str, list[Request]] = {}
        self._arrivals = 0
        self._admissions = 0

    def __len__(self) -> int:
        return sum(map(len, self._classes))

    def __iter__(self) -> Iterator[Request]:
        return merge(*self._classes, key=self._rank)

    def __contains__(self, request: Request) -> bool:
        return request in self._of.get(request.agent_id, ())

    def first(self, count: int) -> list[Request]:
        """The `count` turns that are next, fewer if fewer wait."""
        return list(islice(self, count))

    def in_order(self, turns: Iterable[Request]) -> list[Request]:
        """These of the waiting turns, the next one first."""
        return sorted(turns, key=self._rank)

    def of(self, agent_id: str) -> list[Request]:
        """The waiting turns of one agent."""
        return list(self._of.get(agent_id, ()))

    def add(self, request: Request) -> None:
        """Queue a turn behind those of its rank. One that waited before keeps its arrival."""
        self._arrivals = max(self._arrivals + (not request.arrival), request.arrival)
        request.arrival = request.arrival or self._arrivals
        request.entered = self._admissions - request.passed_over
        insort(self._class(request), request, key=_key)
        self._of.setdefault(request.agent_id, []).append(request)

    def remove(self, request: Request) -> None:
        """Take a turn out, which must wait, and note how often it was passed over."""
        alike = self._class(request)
        del alike[alike.index(request, bisect_left(alike, _key(request), key=_key))]
        left = self._of[request.agent_id]
        left.remove(request)
        if not left:
            del self._of[request.agent_id]
        request.passed_over = self._admissions - request.entered

    def admitted(self) -> None:
        """Others were admitted: who waits on was passed over once more."""
        self._admissions += 1

    def check(self) -> None:
        """Prove the order of each class, and that both indexes hold the same turns."""
        for alike in self._classes:
            keys = list(map(_key, alike))
            assert keys == sorted(keys), "waiting turns are out of order"
        by_agent = sorted(map(id, chain(*self._of.values())))
        assert by_agent == sorted(map(id, chain(*self._classes))), "the index by agent differs"

    def _class(self, request: Request) -> list[Request]:
        return self._classes[request.entered % PATIENCE]

    def level(self, request: Request) -> int:
        """The priority of a waiting turn, raised by how long it waits."""
        return request.priority + (self._admissions - request.entered) // PATIENCE

    def _rank(self, request: Request) -> tuple[int, int]:
        return -self.level(request), request.arrival


def _key(request: Request) -> tuple[int, int]:
    return request.entered // PATIENCE - request.priority, request.arrival
