"""A turn that was taken, and what is told of it."""

import asyncio
import logging
import secrets
from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import xxhash

from kvactors.actors.frontends.server.answering.home import Home, Speaker
from kvactors.actors.frontends.server.dialect.reader import Reader
from kvactors.actors.frontends.server.exchange.events import Ended, Opened, Reason, Usage
from kvactors.actors.frontends.server.exchange.inquiry import Message
from kvactors.actors.frontends.server.identity.canonical import chains, prompt_mark
from kvactors.actors.frontends.server.identity.index import Place
from kvactors.actors.frontends.server.identity.plan import Plan
from kvactors.actors.turns.reply import Reply
from kvactors.actors.turns.ticket import Ticket
from kvactors.core.conversation.turn import Turn
from kvactors.core.errors import KvactorsError
from kvactors.core.schedule.events import Begun
from kvactors.core.schedule.sampling import Sampling

__all__ = [
    "Taken",
    "admission",
    "ended_of",
    "is_cut",
    "log_opened",
    "marks_of",
    "opened_of",
    "places_of",
    "standing",
    "stop_of",
]

logger = logging.getLogger(__name__)

# Seconds that an opening turn is waited for, so that what fails at once is a status.
OPENING = 1.0


@dataclass(slots=True)
class Taken:
    """A turn on its way: by whom, and how it was planned."""

    plan: Plan
    agent: Speaker
    ticket: Ticket
    reader: Reader
    sampling: Sampling
    unread: tuple[str, ...] = ()

    @property
    def answer(self) -> Message:
        """What was answered until now, as its client will say it."""
        return Message("assistant", self.reader.text, self.reader.calls)


async def admission(ticket: Ticket) -> Begun | None:
    """Wait a moment for a turn to begin, so that what fails at once is a status: how much of its
    prompt has KV, if it did. Raises what it failed with."""
    assert ticket.admitted is not None
    with suppress(TimeoutError):
        async with asyncio.timeout(OPENING):
            if begun := await ticket.admitted:
                return begun
            await ticket.reply
    return None


def marks_of(turns: Sequence[Turn], keep: int) -> list[str]:
    """A hash of all turns up to each of those behind the first `keep`, that one included."""
    marks, hashed, said = list[str](), xxhash.xxh3_64(), array("q")
    for number, turn in enumerate(turns):
        # Whose tokens they are counts: an agent may have been told another conversation since.
        said.append(len(turn.token_ids))
        said.extend(turn.token_ids)
        if number >= keep:
            hashed.update(said.tobytes())
            marks.append(hashed.hexdigest())
            del said[:]
    return marks


def standing(home: Home, place: Place) -> Literal["no", "within", "end", "cut"]:
    """What the ledger of a place's agent, at `home`, says of the place; a cancelled answer after it
    counts for none. "cut": it ends with an answer that did not come to its end."""
    try:
        agent = home.spawn(place.agent_id)
    except KvactorsError:
        return "no"
    turns = agent.transcript().turns
    there = turns[: place.turns]
    marks = marks_of(there, place.turns - 1) if place.turns else [prompt_mark(agent.system_prompt)]
    if not place.mark or marks != [place.mark]:
        return "no"
    rest = turns[place.turns :]
    over = not rest or (len(rest) == 1 and rest[0].finish == "cancelled")
    if over and there and there[-1].finish in ("length", "cut"):
        return "cut"
    return "end" if over else "within"


def log_opened(opened: Opened) -> None:
    """How a turn was matched, without what was said."""
    reuse, kept = opened.reuse, ", ".join(opened.reuse.kept) or "none"
    missed = "differs" if reuse.miss else "goes on"
    logger.info(
        "%s: %s, %d tokens known, conversation %s, rules kept: %s",
        opened.agent_id, reuse.how, opened.known, missed, kept,
    )  # fmt: skip


def opened_of(taken: Taken, begun: Begun | None) -> Opened:
    """Who takes it, as its client calls it, and what is known: of a turn that has `begun` what has
    KV, of one that waits what is in the ledger."""
    plan, turns = taken.plan, taken.agent.transcript().turns
    own = len(taken.ticket.behind) * plan.own
    kept = own + sum(len(turn.token_ids) for turn in turns[: plan.keep])
    known = begun.kept if begun else kept
    mine = plan.known
    shown = mine.agent_id.removeprefix(f"{mine.tenant}/") if mine.tenant else mine.agent_id
    return Opened(shown, secrets.token_hex(12), known, plan.reuse, taken.unread)


def stop_of(agent: Speaker, stops: Sequence[str]) -> str | None:
    """The stop string that ended an agent's last answer."""
    hidden = agent.transcript().turns[-1].hidden if stops else ""
    return next((stop for stop in stops if hidden.startswith(stop)), None)


def is_cut(taken: Taken, reply: Reply) -> bool:
    """Whether more would have come: an answer that has a grammar is whole within its length."""
    return reply.finish_reason == "length" and taken.sampling.grammar is None


def ended_of(taken: Taken, reply: Reply, thought: int) -> Ended:
    """The end of a turn that was `taken`, of its `reply`; `thought` tokens were no answer."""
    calls = taken.reader.calls and not is_cut(taken, reply)
    reason: Reason = "calls" if calls else reply.finish_reason
    used = reply.usage
    usage = Usage(used.prompt_tokens, used.reused_tokens, used.generated_tokens, thought)
    return Ended(reason, usage)


def places_of(taken: Taken, answer: Sequence[Message]) -> list[Place]:
    """Where each message of the conversation of a turn that was `taken` stands in its agent's
    ledger, and its `answer`, if it is whole."""
    plan, conversation = taken.plan, taken.plan.conversation
    agent_id, turns = taken.agent.agent_id, taken.agent.transcript().turns
    hashes = list(conversation.hashes[plan.matched :])
    before = conversation.hashes[-1] if conversation.hashes else conversation.before
    hashes += chains(before, answer)
    # Who begins alike finds the first by its beginning.
    mark = prompt_mark(taken.agent.system_prompt)
    first = [] if plan.keep else [Place(conversation.before, agent_id, 0, mark, plan.begins)]
    marks = marks_of(turns, plan.keep)
    numbers = [*range(plan.keep + 1, plan.keep + 1 + len(plan.new))]
    if plan.apart:
        del marks[len(numbers) : len(numbers) + 1]
    numbers.append(plan.keep + len(plan.new) + 1 + plan.apart)
    # A turn that was taken back meanwhile has none.
    marks += [""] * (len(hashes) - len(marks))
    # Who branches off before the message that told it has not heard it.
    heard = len(plan.new) if plan.apart else plan.telling
    notes = [plan.begins] * plan.telling + [plan.notes] * len(hashes)
    tools = [plan.had] * heard + [plan.tools] * len(hashes)
    known = zip(hashes, numbers, marks, notes, tools, strict=False)
    shorn = conversation.shorn
    return first + [
        Place(hash_, agent_id, number, mark, told, more)
        for hash_, number, mark, told, more in known
        if hash_ not in shorn
    ]
