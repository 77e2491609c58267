"""Which turns in an agent's memory a message left there, so that a restart forgets these alone."""

from collections.abc import Iterable
from typing import Any

from kvactors.actors.agents.handle import Agent
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.actors.turns.reply import Reply

__all__ = ["exchanges_at_end", "left_by"]


def left_by(agent: object, asked: ReplyFuture[Reply]) -> ReplyFuture[Any]:
    """A future of what `asked` leaves at the end of the transcript of `agent`, once that has ended:
    the last turn, or the reply where the agent is of a cluster, or None for nothing of its own. It
    never fails."""
    left: ReplyFuture[Any] = ReplyFuture()

    # On the agent's own thread, before its next turn: the last one is of this.
    def ended(_: ReplyFuture[Reply]) -> None:
        own = asked.error is None and _is_new(asked.get())
        left.resolve(_last_turn(agent, asked) if own else None)

    asked.on_done(ended)
    return left


def exchanges_at_end(agent: object, left: Iterable[ReplyFuture[Any]]) -> int:
    """How many exchanges at the end of the transcript of `agent` are those that were `left`, which
    are done. What somebody else's turn came after is not counted: only the end can be forgotten."""
    own = [value for one in left if (value := one.get()) is not None]
    if not isinstance(agent, Agent):
        return len(own)
    turns = agent.transcript().turns if own else ()
    ours = {id(turn) for turn in own}
    keep, count = len(turns), 0
    while keep and id(turns[keep - 1]) in ours:
        answered = keep > 1 and turns[keep - 1].is_answer and not turns[keep - 2].is_answer
        keep -= 2 if answered else 1
        count += 1
    return count


def _last_turn(agent: object, asked: ReplyFuture[Reply]) -> Any:
    """Of a cluster's agent only who waits can read it: there, what succeeded is counted."""
    if not isinstance(agent, Agent):
        return asked.get()
    return next(reversed(agent.transcript().turns), None)


def _is_new(reply: Reply) -> bool:
    """Whether it is of a turn of its own, not of one that somebody had taken before."""
    return not reply.recorded and reply.match != "exact"
