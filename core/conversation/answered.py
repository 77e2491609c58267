"""Which requests an agent has answered, by the ids that its askers gave them. Its agent's thread
only.

Who does not hear an answer asks again under the same id, maybe after a crash, maybe on another
machine: the ledger's record of the turn has the id, and so the turn is not taken twice. An id
stays when a rewind takes its turn back: what was asked was answered, and taking it back was another
request. A fork has its parent's ids, as its ledger has its parent's records.

Of an agent the latest MOST ids are known, more than can wait for it: a turn of an id that
is older would be taken again. They hold turns that the transcript holds too, but for those that
rewinds took back.
"""

from collections.abc import Callable, Sequence

from kvactors.core.conversation.turn import Turn

__all__ = ["MOST", "AnsweredRequests"]

MOST = 4096


class AnsweredRequests:
    """The answer of each request: its turn, or none where nothing was to be said; and what it
    answers."""

    def __init__(self) -> None:
        self._answers: dict[str, tuple[Turn, ...]] = {}

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, request_id: str | None) -> tuple[Turn, ...] | None:
        """The answer under an id; None: there was no such request."""
        found = None if request_id is None else self._answers.get(request_id)
        return None if found is None else found[-1:]

    def prompt(self, request_id: str | None) -> Turn | None:
        """What was answered under an id that has an answer."""
        found = self._answers.get(request_id or "", ())
        return found[0] if len(found) > 1 else None

    def note(self, request_id: str, turns: Sequence[Turn], new: int) -> None:
        """The `new` ones at the end of these `turns` are what was asked under this `request_id`,
        and its answer; the question may be known from before."""
        found = new and turns[-1].is_answer
        self._answers[request_id] = tuple(turns[-2:]) if found else ()
        if len(self._answers) > MOST:
            del self._answers[next(iter(self._answers))]

    def copy(self) -> "AnsweredRequests":
        """The same, for another agent."""
        other = AnsweredRequests()
        other._answers = dict(self._answers)
        return other

    def under(self, read: Callable[[Turn], Turn]) -> "AnsweredRequests":
        """The same for another tokenizer, which has turns as `read` does."""
        other = AnsweredRequests()
        for request_id, turns in self._answers.items():
            other._answers[request_id] = tuple(map(read, turns))
        return other
