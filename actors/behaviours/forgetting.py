"""Which turns in an agent's memory a message left there, so that a restart forgets these alone."""

import logging
from collections.abc import Container, Iterable, Sequence
from typing import Any

from kvactors.actors.agents.handle import Agent
from kvactors.actors.errors import SaveQueueFull
from kvactors.actors.runtime.futures import ReplyFuture, resolved
from kvactors.actors.turns.reply import Reply
from kvactors.core.errors import MailboxFull

__all__ = ["forget_own", "left_by"]

logger = logging.getLogger(__name__)


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


def forget_own(agent: Any, left: Iterable[ReplyFuture[Any]]) -> ReplyFuture[Any]:
    """Let `agent` forget the exchanges at the end of its transcript that were `left`, which are
    done. What somebody else's turn came after, or comes after meanwhile, stays: only the end can be
    forgotten. So does all of it where others wait for a full lane, or no turn can be kept."""
    own = [value for one in left if (value := one.get()) is not None]
    try:
        return _forget(agent, own) if own else resolved()
    except (MailboxFull, SaveQueueFull) as error:
        logger.warning("what a failed message left is not forgotten: %s", error)
        return resolved()


def _forget(agent: Any, own: Sequence[Any]) -> ReplyFuture[Any]:
    if not isinstance(agent, Agent):
        forgotten: ReplyFuture[Any] = agent.rewind(len(own))
        return forgotten
    turns = agent.transcript().turns
    count = _exchanges_at_end(turns, {id(turn) for turn in own})
    return agent.forget_own(count, turns[-1]) if count else resolved()


def _exchanges_at_end(turns: Sequence[Any], ours: Container[int]) -> int:
    """How many exchanges at the end of `turns` have the ids `ours`."""
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
