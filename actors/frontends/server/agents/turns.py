"""A turn of one agent, as JSON or as server-sent events. The event loop.

The agent is held from before the turn is opened until it has ended, whoever reads it: a second
request for it meanwhile is told so (409), and a client's conversation through `/v1` goes to a fork.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass, replace

from pydantic import BaseModel
from sse_starlette import ServerSentEvent

from kvactors.actors.agents.handle import Agent
from kvactors.actors.frontends.server.agents.bodies import TurnAnswer, TurnBody
from kvactors.actors.frontends.server.agents.owned import OwnedAgents
from kvactors.actors.frontends.server.wire.errors import failed_late
from kvactors.actors.turns.options import TurnOptions, check_options
from kvactors.actors.turns.reply import Reply
from kvactors.actors.turns.stream import AsyncReplyStream
from kvactors.actors.turns.ticket import Ticket

__all__ = ["OpenTurn", "Turns"]


class Piece(BaseModel):
    """Some of an answer's text, and how many tokens it is of."""

    text: str
    tokens: int


@dataclass(frozen=True, slots=True)
class OpenTurn:
    """A turn of `agent`, which its client calls `shown`."""

    shown: str
    agent: Agent
    ticket: Ticket
    options: TurnOptions

    async def answer(self) -> TurnAnswer:
        """Its end. Leaving early ends it. Raises as `Agent.ask`."""
        try:
            reply: Reply = await self.ticket.reply
        finally:
            self.agent.end_turn(self.ticket)
        return TurnAnswer.of(self.shown, reply)

    async def events(self) -> AsyncGenerator[ServerSentEvent, None]:
        """`text` events, then `end` with the answer, or `error`. Leaving early ends the turn."""
        stop = self.options.sampling.stop
        try:
            async for piece in AsyncReplyStream(self.ticket, stop, self._leave):
                said = Piece(text=piece.text, tokens=len(piece.token_ids))
                yield ServerSentEvent(event="text", data=said.model_dump_json())
            reply: Reply = await self.ticket.reply
            answer = TurnAnswer.of(self.shown, reply)
            yield ServerSentEvent(event="end", data=answer.model_dump_json())
        except Exception as error:
            yield ServerSentEvent(event="error", data=failed_late(error).json("openai"))
        finally:
            self._leave()

    def _leave(self) -> None:
        self.agent.end_turn(self.ticket)


class Turns:
    """Opens turns, and holds their agents until they end."""

    def __init__(self) -> None:
        self._tasks = set[asyncio.Task[None]]()

    async def open(self, owned: OwnedAgents, agent_id: str, body: TurnBody) -> OpenTurn:
        """The turn that `body` asks of `agent_id`, one of those `owned`. Raises AgentNotStored,
        AgentBusy, and as `Agent.ask` does at once."""
        agent = await owned.agent(agent_id)
        options = check_options(
            agent.host.info,
            body.prompt,
            messages=body.messages,
            match=body.match,
            threshold=body.threshold,
            sampling=body.sampling(),
            timeout=body.timeout,
            priority=body.priority,
            request_id=body.request_id,
            template_kwargs=body.template_kwargs,
            continue_final_message=body.continue_final_message,
        )
        options = replace(options, tenant=owned.tenant)
        opened = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(_hold(owned, agent, options, opened))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        ticket: Ticket = await opened
        return OpenTurn(agent_id, agent, ticket, options)


async def _hold(
    owned: OwnedAgents, agent: Agent, options: TurnOptions, opened: "asyncio.Future[Ticket]"
) -> None:
    """Open a turn, and hold its agent while it runs."""
    try:
        async with owned.service.claims.hold(agent.agent_id):
            ticket = agent.open_turn(options)
            if opened.cancelled():
                agent.end_turn(ticket)
            else:
                opened.set_result(ticket)
            with suppress(Exception):
                await ticket.reply
    except Exception as error:
        if not opened.done():
            opened.set_exception(error)
