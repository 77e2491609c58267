"""An agent of a cluster as front ends ask it: whole turns, whose tokens they read off tickets. Any
thread; what it does runs on the cluster's loop."""

import asyncio
from contextlib import aclosing, suppress
from typing import Any
from weakref import WeakKeyDictionary

from kvactors.actors.agents.handle import TranscriptView
from kvactors.actors.cluster.agents.asking import Asking
from kvactors.actors.cluster.agents.requests import new_id
from kvactors.actors.cluster.agents.transcripts import open_record
from kvactors.actors.cluster.host.answers import read_logprobs
from kvactors.actors.cluster.host.requests import turn_request
from kvactors.actors.cluster.machine.link import Link
from kvactors.actors.cluster.protocol.errors import SaidOtherwise
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.actors.turns.options import TurnOptions
from kvactors.actors.turns.reply import Reply
from kvactors.actors.turns.ticket import Ticket
from kvactors.core.conversation.transcript import Transcript
from kvactors.core.errors import KvactorsError
from kvactors.core.model.info import ModelInfo
from kvactors.core.schedule.events import Begun, Tokens

__all__ = ["FrontAgent"]


class FrontAgent:
    """The agent `agent_id`, reached by `link`, of nodes that run `model`. What it remembers is
    known as of when it was last looked at: by `look`, and at the end of a turn that is opened here.
    """

    def __init__(self, agent_id: str, link: Link, model: ModelInfo) -> None:
        self.agent_id = agent_id
        self._link, self._model = link, model
        self._asking = Asking(agent_id, link)
        self._ids: WeakKeyDictionary[Ticket, str] = WeakKeyDictionary()
        self._looking = asyncio.Lock()
        self._known = _Known(model)

    @property
    def system_prompt(self) -> str | None:
        """The system prompt that its transcript begins with."""
        return self._known.transcript.system_prompt

    def transcript(self) -> TranscriptView:
        """What it remembered when it was last looked at."""
        return TranscriptView(tuple(self._known.transcript.turns))

    def look(self) -> None:
        """See what it remembers. Waits for its node, not on an event loop. Raises UnknownAgent,
        InvalidConfig without the key of encrypted nodes, Unanswered."""
        self._link.run(self._look())

    def open_turn(self, turn: TurnOptions) -> Ticket:
        """Take a turn, once, whatever dies on the way. Its ticket is settled as an
        `Agent.open_turn`'s is. Raises InvalidInput, SystemStopped."""
        request = turn_request(new_id(), turn)
        ticket = Ticket.begin(self.agent_id, streamed=True)
        ticket.chat = self._model.chat
        self._ids[ticket] = request["id"]

        def failed(done: ReplyFuture[None]) -> None:
            if done.error is not None:
                ticket.reject(done.error)

        self._link.begin(self._take(ticket, request)).on_done(failed)
        return ticket

    def end_turn(self, ticket: Ticket) -> None:
        """End the turn of a ticket at its next step, or see to it that there is none."""
        if not ticket.reply.done:
            self._asking.cancel(self._ids[ticket])

    async def _take(self, ticket: Ticket, request: dict[str, Any]) -> None:
        told = _Told(ticket)
        async with aclosing(self._asking.items(request)) as items:
            async for item in items:
                if "answer" in item:
                    told.check(item["answer"]["tokens"])
                    reply = self._reply(request, item)
                    break
                told.add(item)
        with suppress(KvactorsError):
            # Without it nothing of the turn is known here: who goes on from it begins anew.
            await self._look()
        ticket.resolve(reply)

    def _reply(self, request: dict[str, Any], given: dict[str, Any]) -> Reply:
        if request["remembered"]:
            return self._asking.reply(request, given)
        # No record of it will ever be anywhere.
        return self._asking.reply(request, {**given, "durable": True})

    async def _look(self) -> None:
        """The record before those that are new must be the one that is known, else another ledger
        has come in its place."""
        async with self._looking:
            known = self._known
            copies = await self._read(max(0, known.count - 1))
            if known.last and copies[:1] != known.last:
                known, copies = _Known(self._model), await self._read(0)
            for copy in copies[len(known.last) :]:
                known.add(copy, open_record(self.agent_id, copy))
            self._known = known

    async def _read(self, start: int) -> list[bytes]:
        found = await self._link.client.read(self.agent_id, start, self._link.seconds)
        return list(found["records"])


class _Known:
    """What a ledger said, in the words of `model`: `count` records, and a copy of the `last`."""

    def __init__(self, model: ModelInfo) -> None:
        self.transcript = Transcript(model.chat, model.tokenizer_id)
        self.count = 0
        self.last: list[bytes] = []

    def add(self, copy: bytes, record: dict[str, Any]) -> None:
        """The next `record`, of this `copy`."""
        self.transcript.replay(record)
        self.count, self.last = self.count + 1, [copy]


class _Told:
    """Passes on to a `ticket` what is told of its turn: what another node says again, once."""

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket
        self._shown: list[int] = []
        self._heard = 0

    def check(self, tokens: list[int]) -> None:
        """Raise SaidOtherwise unless the answer, of these `tokens`, begins with what was told."""
        if list(tokens[: len(self._shown)]) != self._shown:
            raise SaidOtherwise(shown=len(self._shown), what="tokens")

    def add(self, item: dict[str, Any]) -> None:
        """One of the protocol's items, but for the answer. Raises SaidOtherwise."""
        ticket = self._ticket
        if "again" in item:
            self._heard = 0
        elif "begun" in item:
            ticket.begin_prefill(Begun(ticket.agent_id, ticket.serial, *item["begun"]))
        elif "tokens" in item:
            said = list(item["tokens"])
            known = self._shown[self._heard : self._heard + len(said)]
            if said[: len(known)] != known:
                raise SaidOtherwise(shown=len(self._shown), what="tokens")
            self._heard += len(said)
            if new := len(said) - len(known):
                tokens, scored = said[-new:], item.get("logprobs", ())[-new:]
                self._shown += tokens
                told = Tokens(ticket.agent_id, ticket.serial, tuple(tokens), read_logprobs(scored))
                ticket.push(told)
