"""Service: takes the turns that clients ask for, and keeps what it learns about who knows what. The
event loop.
"""

import asyncio
import logging
import secrets
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from kvactors.actors.frontends.server.answering.asked import (
    continuation,
    prompt_tokens,
    sampling_of,
)
from kvactors.actors.frontends.server.answering.broadcast import Broadcast, Reading
from kvactors.actors.frontends.server.answering.claims import Claims
from kvactors.actors.frontends.server.answering.counts import Counts
from kvactors.actors.frontends.server.answering.home import Home, Speaker
from kvactors.actors.frontends.server.answering.taken import (
    Taken,
    admission,
    ended_of,
    log_opened,
    opened_of,
    places_of,
    stop_of,
)
from kvactors.actors.frontends.server.answering.telling import told
from kvactors.actors.frontends.server.dialect.dialect import Dialect
from kvactors.actors.frontends.server.dialect.manner import Spoken, spoken
from kvactors.actors.frontends.server.exchange.answers import Answer
from kvactors.actors.frontends.server.exchange.inquiry import Client, Inquiry, Manner, Message
from kvactors.actors.frontends.server.identity.canonical import canonical, chains, new_call_id
from kvactors.actors.frontends.server.identity.index import Index
from kvactors.actors.frontends.server.identity.plan import Plan
from kvactors.actors.frontends.server.identity.rules import Rule
from kvactors.actors.turns.options import TurnOptions
from kvactors.actors.turns.reply import Reply
from kvactors.core.conversation.token_offsets import whole_text
from kvactors.core.errors import AdmissionFull, KvactorsError, SystemStopped

__all__ = ["Service"]

logger = logging.getLogger(__name__)

# Seconds that a finished answer is kept whose reader left before its end.
KEPT = 300.0
# Seconds that a client waits at most for a turn to end that it left: a step of the engine.
LEAVING = 5.0
_T = TypeVar("_T")


class Service:
    """Turns for clients of one running `system`, found through `index` by `rules`. At most `most`
    are open at once."""

    def __init__(
        self, system: Home, index: Index, rules: Sequence[Rule], *, most: int = 10_000
    ) -> None:
        self.system = system
        self.index = index
        self.most = most
        self.dialect = Dialect(system.chat)
        self.counts = Counts()
        self.counts.open.set_function(lambda: len(self._tasks))
        self.claims = Claims(system, index, rules, most)
        self._open: dict[str, Broadcast] = {}
        self._tasks: dict[Broadcast, asyncio.Task[None]] = {}
        self._ending: dict[str, tuple[Inquiry, asyncio.Task[None]]] = {}

    async def open(self, inquiry: Inquiry, *, key: str = "") -> Answer:
        """As `kvactors.actors.frontends.server.exchange.answers.Answers.open`."""
        if key not in self._open and (left := self._left(inquiry)):
            # Who interrupted itself goes on with what was prefilled until then, once that is known.
            await asyncio.wait(left, timeout=LEAVING)
        while key in self._open or key in self._ending:
            if same := self._open.get(key):
                self.counts.attached.inc()
                return await Reading(same).wait()
            # Its client is back: what was prefilled is known then. Others may be back before it.
            await asyncio.wait({self._ending[key][1]})
        if self.claims.closing:
            raise SystemStopped("the server is stopping and takes no more turns")
        if len(self._tasks) >= self.most:
            raise AdmissionFull(f"{len(self._tasks)} turns are open, and {self.most} may be")
        abandon = partial(self._abandon, inquiry)
        broadcast = Broadcast(key or secrets.token_hex(8), abandon, self._drop)
        self._open[broadcast.key] = broadcast
        reading = Reading(broadcast)
        task = asyncio.create_task(self._take(inquiry, broadcast))
        self._tasks[broadcast] = task
        task.add_done_callback(lambda _: self._tasks.pop(broadcast))
        return await reading.wait()

    def count(self, inquiry: Inquiry) -> int:
        """Tokens of a prompt that begins anew."""
        return prompt_tokens(spoken(self.dialect, inquiry).dialect, inquiry)

    async def close(self, seconds: float) -> None:
        """Take no more turns; let running ones finish for so many seconds, then end them."""
        self.claims.closing = True
        running = list(self._tasks.values())
        if running:
            await asyncio.wait(running, timeout=seconds)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self.claims.close()

    # -- one turn ----------------------------------------------------------------------

    async def _take(self, inquiry: Inquiry, broadcast: Broadcast) -> None:
        taken: Taken | None = None
        try:
            taken = await self._begin(inquiry)
            opened = opened_of(taken, await admission(taken.ticket))
            self.counts.taken(opened)
            log_opened(opened)
            broadcast.taken.set_result(opened)
            if broadcast.readers:
                await self._read(inquiry, taken, broadcast)
                broadcast.end()
            else:
                # Who asked left meanwhile. Nothing is cut off while an agent is being made.
                await self._give_up(taken)
        except BaseException as error:
            self._drop(broadcast)
            try:
                if taken is not None:
                    await self._give_up(taken)
                    if not broadcast.taken.done():
                        # Once: somebody else may have it a moment later.
                        plan, taken = taken.plan, None
                        await self.claims.let_go(plan)
            finally:
                broadcast.fail(error)
            if not isinstance(error, Exception | asyncio.CancelledError):
                raise
        finally:
            if taken is not None:
                self.claims.release(taken.plan)
            self._keep(broadcast)

    async def _give_up(self, taken: Taken) -> None:
        """End a turn; what was said and prefilled of it is known from here on."""
        taken.agent.end_turn(taken.ticket)
        with suppress(KvactorsError, asyncio.CancelledError):
            await asyncio.shield(taken.ticket.reply)
            # One that ended meanwhile was not read to its end.
            await self._finish(taken)

    async def _begin(self, inquiry: Inquiry) -> Taken:
        says = Spoken(self.dialect)
        if inquiry.formed or inquiry.manner != Manner():
            says = await self.claims.beside(partial(spoken, self.dialect, inquiry))
            inquiry = replace(inquiry, head=says.head)
        # Long texts take time, which is not that of the streams on the loop.
        asked = partial(self._options, inquiry, says)
        plan, agent, (options, begun) = await self.claims.take(inquiry, asked)
        try:
            reader = says.dialect.reader(inquiry, new_call_id)
            if plan.begun is not None:
                reader.begin(whole_text(self.dialect.chat.decode, begun), plan.begun.text)
            ticket = agent.open_turn(options)
            # Of an agent of another process nobody else says so.
            ticket.behind = begun
        except BaseException:
            await self.claims.let_go(plan)
            raise
        return Taken(plan, agent, ticket, reader, options.sampling, says.unread)

    def _options(
        self, inquiry: Inquiry, says: Spoken, plan: Plan, agent: Speaker
    ) -> tuple[TurnOptions, tuple[int, ...]]:
        """What an `agent` is asked by an `inquiry` that `says` it, and what it goes on with."""
        said, begun = continuation(says.dialect, inquiry, plan, agent)
        sampling = sampling_of(self.system, says.dialect, inquiry, agent, said)
        sampling = replace(sampling, top_logprobs=inquiry.top_logprobs)
        client = inquiry.client
        options = TurnOptions(
            said,
            sampling,
            priority=client.priority,
            template_kwargs=says.told,
            tenant=client.tenant,
        )
        return options, begun

    async def _read(self, inquiry: Inquiry, taken: Taken, broadcast: Broadcast) -> None:
        """Pass on what comes, and note who knows it before its end is told."""
        async for event in told(inquiry, taken, self.system.chat):
            broadcast.add(event)
        reply: Reply = await taken.ticket.reply
        # What was cut off is no place of anybody.
        answer = () if reply.finish_reason == "cancelled" else (taken.answer,)
        await self._finish(taken, answer, broadcast.taken.result().answer_id)
        thought = await self._count_thoughts(taken.reader.thoughts)
        stop = stop_of(taken.agent, inquiry.sampling.stop)
        ended = replace(ended_of(taken, reply, thought), stop=stop)
        self.counts.ended(ended, reply.timing.first_token)
        broadcast.add(ended)

    async def _count_thoughts(self, thoughts: str) -> int:
        """Tokens of `thoughts`, beside the streams."""
        encode = partial(self.system.chat.encode_rest, thoughts)
        return len(await self.claims.beside(encode)) if thoughts else 0

    async def _finish(
        self, taken: Taken, answer: tuple[Message, ...] = (), answer_id: str = ""
    ) -> None:
        """Note where each message of the conversation stands in the agent's ledger, and its
        `answer`, of this `answer_id`, if it is whole."""
        plan, conversation = taken.plan, taken.plan.conversation
        last = (conversation.before, *conversation.hashes)[plan.matched]
        said = (*conversation.compared[plan.matched :], *answer)
        hashes = [last, *chains(last, said)]

        known = replace(plan.known, notes=plan.notes)

        def note() -> None:
            self.index.note(known, plan.keep, places_of(taken, answer), answer_id)
            self.index.note_said(hashes, [canonical(message) for message in said])

        try:
            await self.claims.on_index(note)
        except sqlite3.DatabaseError as error:
            # What is lost there costs a prefill; the turn is said, and in the ledger.
            logger.error("a turn of %r is not in the index: %s", taken.agent.agent_id, error)

    def _keep(self, broadcast: Broadcast) -> None:
        """Keep a complete answer until a reader has had its end, for who asks again."""
        if broadcast.complete:
            later = asyncio.get_running_loop().call_later(KEPT, self._drop, broadcast)
            broadcast.on_dropped = later.cancel
        else:
            self._drop(broadcast)

    def _left(self, inquiry: Inquiry) -> list[asyncio.Task[None]]:
        """Turns that its client left and that are just ending, of its own conversation: that of
        who names none begins alike."""
        client, said = inquiry.client, inquiry.messages
        named = client != Client(client.tenant)

        def alike(other: Inquiry) -> bool:
            most = max(1, len(other.messages) - 1)
            return other.client == client and (named or other.messages[:most] == said[:most])

        return [task for other, task in self._ending.values() if alike(other)]

    def _abandon(self, inquiry: Inquiry, broadcast: Broadcast) -> None:
        """Nobody reads any more: who asks now gets a turn of its own."""
        self._drop(broadcast)
        if broadcast.taken.done() and (task := self._tasks.get(broadcast)):
            self._ending[broadcast.key] = inquiry, task
            task.add_done_callback(lambda _: self._ending.pop(broadcast.key, None))
            task.cancel()

    def _drop(self, broadcast: Broadcast) -> None:
        if self._open.get(broadcast.key) is broadcast:
            del self._open[broadcast.key]
        broadcast.on_dropped()
