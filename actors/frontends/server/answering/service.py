"""Service: takes the turns that clients ask for, and keeps what it learns about who knows what.

One thread of its own plans turns over the index; the event loop reads what comes of them.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import xxhash

from kvactors.actors.agents.handle import Agent
from kvactors.actors.frontends.server.answering.broadcast import Broadcast
from kvactors.actors.frontends.server.answering.counts import Counts
from kvactors.actors.frontends.server.dialect.dialect import Dialect
from kvactors.actors.frontends.server.dialect.reader import Reader
from kvactors.actors.frontends.server.dialect.token_texts import TokenTexts
from kvactors.actors.frontends.server.exchange.answers import AgentBusy
from kvactors.actors.frontends.server.exchange.events import Begun, Ended, Opened, Reason, Usage
from kvactors.actors.frontends.server.exchange.inquiry import Inquiry, Message
from kvactors.actors.frontends.server.identity.canonical import canonical, chains
from kvactors.actors.frontends.server.identity.index import Index, Place
from kvactors.actors.frontends.server.identity.resolve import Plan, Resolver
from kvactors.actors.frontends.server.identity.rules import Rule
from kvactors.actors.system.system import AgentSystem
from kvactors.actors.turns.options import TurnOptions
from kvactors.actors.turns.prompt import Continuation
from kvactors.actors.turns.reply import Reply
from kvactors.actors.turns.stream import AsyncReplyStream
from kvactors.actors.turns.ticket import Ticket
from kvactors.core.conversation.turn import Turn
from kvactors.core.errors import AdmissionFull, KvactorsError, SystemStopped
from kvactors.core.schedule.sampling import Sampling

__all__ = ["Service"]

logger = logging.getLogger(__name__)

# Seconds that a finished answer is kept whose reader left before its end.
KEPT = 300.0
# What a template may put around a turn, in tokens.
FRAME_TOKENS = 64
_T = TypeVar("_T")


@dataclass(slots=True)
class _Taken:
    """A turn on its way: by whom, and how it was planned."""

    plan: Plan
    agent: Agent
    ticket: Ticket
    reader: Reader


class Service:
    """Turns for clients of one running `system`, found through `index` by `rules`. At most `most`
    are open at once."""

    def __init__(
        self, system: AgentSystem, index: Index, rules: Sequence[Rule], *, most: int = 10_000
    ) -> None:
        self.system = system
        self.index = index
        self.most = most
        self.closing = False
        self.dialect = Dialect(system.chat)
        self.counts = Counts()
        self.counts.open.set_function(lambda: len(self._tasks))
        self._rules = rules
        self._resolver = Resolver(index, rules, self._stands)
        self._planner = ThreadPoolExecutor(1, "kvactors-index")
        self._busy: set[str] = set()
        self._open: dict[str, Broadcast] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, inquiry: Inquiry, *, key: str = "") -> Broadcast:
        """As `kvactors.actors.frontends.server.exchange.answers.Answers.open`."""
        while key and (same := self._open.get(key)) is not None:
            if not same.abandoned:
                self.counts.attached.inc()
                return same.join()
            # Its client has gone and is back: what was prefilled is there in a moment.
            await same.cleared()
        if self.closing:
            raise SystemStopped("the server is stopping and takes no more turns")
        if len(self._tasks) >= self.most:
            raise AdmissionFull(f"{len(self._tasks)} turns are open, and {self.most} may be")
        opened = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._take(inquiry, key or secrets.token_hex(8), opened))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        broadcast: Broadcast = await opened
        return broadcast

    def count(self, inquiry: Inquiry) -> int:
        """Tokens of a prompt that begins anew."""
        return len(self._prompt(inquiry))

    async def idle_agents(self, before: float) -> list[str]:
        """Agents without a name that were last used before a time, in seconds since 1970."""
        return await self.on_index(lambda: self.index.idle(before))

    async def forget(self, agent_id: str) -> bool:
        """Delete an agent and what is known of it; not while it answers. Raises KvactorsError."""

        def work() -> bool:
            if agent_id in self._busy:
                return False
            self.index.forget(agent_id)
            self.system.forget(agent_id)
            return True

        return await self.on_index(work)

    async def on_index(self, work: Callable[[], _T]) -> _T:
        """What `work` returns, done on the thread of the index."""
        return await asyncio.get_running_loop().run_in_executor(self._planner, work)

    @asynccontextmanager
    async def hold(self, agent_id: str) -> AsyncGenerator[None, None]:
        """Nobody else takes turns of an agent meanwhile: requests of its conversation go to a fork.
        Raises AgentBusy, SystemStopped."""
        if self.closing:
            raise SystemStopped("the server is stopping and takes no more turns")
        await self.on_index(lambda: self._claim(agent_id))
        try:
            yield
        finally:
            self._busy.discard(agent_id)

    async def close(self, seconds: float) -> None:
        """Take no more turns; let running ones finish for so many seconds, then end them."""
        self.closing = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._planner.shutdown()
        self.index.close()

    # -- one turn ----------------------------------------------------------------------

    async def _take(self, inquiry: Inquiry, key: str, opened: "asyncio.Future[Broadcast]") -> None:
        task = asyncio.current_task()
        assert task is not None
        broadcast = Broadcast(task.cancel, lambda: self._drop(key, broadcast))
        self._open[key] = broadcast
        taken: _Taken | None = None
        try:
            taken = await self._begin(inquiry)
            broadcast.opened = _opened(taken)
            self.counts.taken(broadcast.opened)
            _log(broadcast.opened)
            opened.set_result(broadcast)
            await self._read(inquiry, taken, broadcast)
            broadcast.end()
        except BaseException as error:
            if not opened.done():
                opened.set_exception(error)
            broadcast.end(error)
            if taken is not None:
                taken.agent.end_turn(taken.ticket)
                with suppress(KvactorsError, asyncio.CancelledError):
                    await self._finish(taken, inquiry, await asyncio.shield(taken.ticket.reply))
            if not isinstance(error, Exception | asyncio.CancelledError):
                raise
        finally:
            if taken is not None:
                self._busy.discard(taken.agent.agent_id)
            self._keep(key, broadcast)
            broadcast.clear()

    async def _begin(self, inquiry: Inquiry) -> _Taken:
        plan, agent = await self.on_index(lambda: self._plan(inquiry))
        known = plan.known
        try:
            if agent is None:
                parent = plan.parent or None
                agent = await asyncio.to_thread(self.system.spawn, known.agent_id, from_=parent)
            if plan.fresh or plan.tools:
                await self.on_index(lambda: self.index.begin(known))
            reader = self.dialect.reader(inquiry, _call_id)
            said = self._continuation(inquiry, plan)
            sampling = self._sampling(inquiry, agent, said)
            sampling = replace(sampling, top_logprobs=inquiry.top_logprobs)
            ticket = agent.open_turn(TurnOptions(said, sampling))
        except BaseException:
            self._busy.discard(known.agent_id)
            raise
        return _Taken(plan, agent, ticket, reader)

    def _plan(self, inquiry: Inquiry) -> tuple[Plan, Agent | None]:
        """Who takes the turn, and its agent if that is there: each thread that a turn goes through
        costs its first token time."""
        plan = self._resolver.plan(inquiry, self._busy)
        agent = None if plan.fresh else self.system.spawn(plan.known.agent_id)
        self._busy.add(plan.known.agent_id)
        return plan, agent

    def _claim(self, agent_id: str) -> None:
        if agent_id in self._busy:
            raise AgentBusy(agent_id)
        self._busy.add(agent_id)

    def _continuation(self, inquiry: Inquiry, plan: Plan) -> Continuation:
        """What the turn says behind what its agent knows already."""
        conversation = plan.conversation
        new = conversation.said[plan.matched :]
        tools = self.dialect.system("", inquiry.tools) if plan.tools else ""
        if (told := "\n\n".join(text for text in (plan.tell, tools) if text)) and new:
            new = (replace(new[0], text=f"{told}\n\n{new[0].text}"), *new[1:])
        system = self.dialect.system(conversation.system, inquiry.tools)
        return Continuation(plan.keep, tuple(map(self.dialect.turn, new)), system)

    def _sampling(self, inquiry: Inquiry, agent: Agent, said: Continuation) -> Sampling:
        """How the answer is drawn, in the form that is asked for, and how long it may be."""
        sampling = replace(inquiry.sampling, grammar=self.dialect.grammar(inquiry))
        if not inquiry.open_end:
            return sampling
        chat, turns = self.system.chat, agent.transcript().turns[: said.keep]
        system = said.system if said.system and not said.keep else ""
        texts = [system, *(text for _, text in said.messages)]
        used = sum(len(turn.token_ids) for turn in turns)
        used += sum(len(chat.encode(text)) + FRAME_TOKENS for text in texts)
        left = self.system.info.spec.context - used
        return replace(sampling, max_tokens=max(1, min(sampling.max_tokens, left)))

    async def _read(self, inquiry: Inquiry, taken: _Taken, broadcast: Broadcast) -> None:
        """Pass on what comes, and note who knows it before its end is told."""
        ticket, reader = taken.ticket, taken.reader
        assert ticket.admitted is not None
        begun = await ticket.admitted
        if begun is not None:
            broadcast.add(Begun(begun.prompt, begun.kept))
        stop, agent = inquiry.sampling.stop, taken.agent
        texts = TokenTexts(self.system.chat)
        async for piece in AsyncReplyStream(ticket, stop, lambda: agent.end_turn(ticket)):
            for event in reader.feed(piece.text, texts.tell(piece.logprobs)):
                broadcast.add(event)
        reply: Reply = await ticket.reply
        for event in reader.end():
            broadcast.add(event)
        await self._finish(taken, inquiry, reply, broadcast.opened.answer_id)
        thought = len(self.system.chat.encode_rest(reader.thoughts)) if reader.thoughts else 0
        ended = replace(_ended(reply, reader, thought), stop=_stop_of(agent, stop))
        self.counts.ended(ended, reply.timing.first_token)
        broadcast.add(ended)

    async def _finish(
        self, taken: _Taken, inquiry: Inquiry, reply: Reply, answer_id: str = ""
    ) -> None:
        """Note where each message of the conversation stands in the agent's ledger."""
        plan, conversation, reader = taken.plan, taken.plan.conversation, taken.reader
        turns = taken.agent.transcript().turns
        hashes = list(conversation.hashes[plan.matched :])
        if reply.finish_reason != "cancelled":
            before = conversation.hashes[-1] if conversation.hashes else conversation.before
            answer = Message("assistant", reader.text, reader.calls)
            hashes += chains(before, [answer])
        places = [
            Place(hash_, taken.agent.agent_id, number, _mark_of(turns, number))
            for number, hash_ in enumerate(hashes, plan.keep + 1)
        ]
        if not plan.keep:
            # Who begins alike finds it by this.
            places.insert(0, Place(conversation.before, taken.agent.agent_id, 0, ""))
        texts = [canonical(m) for m in conversation.said[plan.matched :]]
        all_hashes = [conversation.before, *conversation.hashes]

        def note() -> None:
            agent_id = taken.agent.agent_id
            self.index.note(agent_id, plan.keep, places, plan.notes, answer_id)
            self.index.note_said(all_hashes[plan.matched :], texts)

        await self.on_index(note)

    def _keep(self, key: str, broadcast: Broadcast) -> None:
        """Keep a complete answer until a reader has had its end, for who asks again."""
        if broadcast.complete:
            asyncio.get_running_loop().call_later(KEPT, self._drop, key, broadcast)
        else:
            self._drop(key, broadcast)

    def _drop(self, key: str, only: Broadcast) -> None:
        if self._open.get(key) is only:
            del self._open[key]

    def _stands(self, place: Place) -> Literal["no", "within", "end"]:
        """What an agent's ledger says of a place; a cancelled answer after it counts for none."""
        try:
            turns = self.system.spawn(place.agent_id).transcript().turns
        except KvactorsError:
            return "no"
        if not place.mark or _mark_of(turns, place.turns) != place.mark:
            return "no"
        rest = turns[place.turns :]
        over = not rest or (len(rest) == 1 and rest[0].finish == "cancelled")
        return "end" if over else "within"

    def _prompt(self, inquiry: Inquiry) -> list[int]:
        chat, first = self.system.chat, True
        system = "\n\n".join(m.text for m in inquiry.messages if m.role == "system")
        text = ""
        for message in inquiry.messages:
            if message.role == "system":
                continue
            role, said = self.dialect.turn(message)
            if first:
                opening = self.dialect.system(system, inquiry.tools)
                text += chat.opening(role, said, system=opening, answer=True)
            else:
                text += chat.following(role, said, answer=True)
            first = False
        return chat.encode(text)


def _call_id() -> str:
    return f"call_kv{secrets.token_hex(12)}"


def _mark_of(turns: Sequence[Turn], number: int) -> str:
    if not 0 < number <= len(turns):
        return ""
    return xxhash.xxh3_64_hexdigest(repr(turns[number - 1].token_ids).encode())


def _log(opened: Opened) -> None:
    """How a turn was matched, without what was said."""
    reuse, kept = opened.reuse, ", ".join(opened.reuse.kept) or "none"
    missed = "differs" if reuse.miss else "goes on"
    logger.info(
        "%s: %s, %d tokens known, conversation %s, rules kept: %s",
        opened.agent_id, reuse.how, opened.known, missed, kept,
    )  # fmt: skip


def _opened(taken: _Taken) -> Opened:
    turns = taken.agent.transcript().turns[: taken.plan.keep]
    known = sum(len(turn.token_ids) for turn in turns)
    return Opened(taken.agent.agent_id, secrets.token_hex(12), known, taken.plan.reuse)


def _stop_of(agent: Agent, stops: Sequence[str]) -> str | None:
    """The stop string that ended an agent's last answer."""
    hidden = agent.transcript().turns[-1].hidden if stops else ""
    return next((stop for stop in stops if hidden.startswith(stop)), None)


def _ended(reply: Reply, reader: Reader, thought: int) -> Ended:
    reason: Reason = "calls" if reader.calls else reply.finish_reason
    used = reply.usage
    usage = Usage(used.prompt_tokens, used.reused_tokens, used.generated_tokens, thought)
    return Ended(reason, usage)
