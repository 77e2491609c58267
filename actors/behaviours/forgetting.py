"""Which turns in an agent's memory a message left there, so that a restart forgets these alone."""

from collections.abc import Iterable, Sequence
from typing import Any

from kvactors.actors.agents.handle import Agent
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.actors.turns.reply import Reply

__all__ = ["exchanges_at_end", "left_by"]


def left_by(agent: Agent, asked: ReplyFuture[Reply]) -> ReplyFuture[Any]:
    """A future of the last turn in the transcript of `agent` that `asked` leaves there, once that
    has ended: None if it leaves none of its own. It never fails."""
    left: ReplyFuture[Any] = ReplyFuture()

    # On the agent's own thread, before its next turn: the last one is of this.
    def ended(_: ReplyFuture[Reply]) -> None:
        own = asked.error is None and _is_new(asked.get())
        left.resolve(next(reversed(agent.transcript().turns), None) if own else None)

    asked.on_done(ended)
    return left


def exchanges_at_end(turns: Sequence[Any], left: Iterable[ReplyFuture[Any]]) -> int:
    """How many exchanges at the end of these `turns` are those that were `left`, which are done.
    What somebody else's turn came after is not counted: only the end can be forgotten."""
    own = {id(one.get()) for one in left}
    keep, count = len(turns), 0
    while keep and id(turns[keep - 1]) in own:
        answered = keep > 1 and turns[keep - 1].is_answer and not turns[keep - 2].is_answer
        keep -= 2 if answered else 1
        count += 1
    return count


def _is_new(reply: Reply) -> bool:
    """Whether it is of a turn of its own, not of one that somebody had taken before."""
    return not reply.recorded and reply.match != "exact"
