"""Completions: texts that the model goes on with. Each is a turn of an agent that remembers nothing
and is forgotten at the end, also when the client goes away; others that begin alike begin with what
it computed. The event loop's thread alone."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress

import xxhash

from kvactors.actors.errors import AgentNotStored
from kvactors.actors.frontends.server.answering.asked import shortened
from kvactors.actors.frontends.server.answering.home import Speaker
from kvactors.actors.frontends.server.answering.service import Service
from kvactors.actors.frontends.server.dialect.token_texts import TokenLine, TokenTexts
from kvactors.actors.frontends.server.exchange.completion import Completed, Completion, Continued
from kvactors.actors.frontends.server.exchange.events import Usage
from kvactors.actors.turns.options import TurnOptions
from kvactors.actors.turns.prompt import NewTokenIds, check_prompt
from kvactors.actors.turns.reply import Reply
from kvactors.actors.turns.stream import AsyncReplyStream
from kvactors.actors.turns.ticket import Ticket
from kvactors.core.errors import AdmissionFull, SystemStopped

__all__ = ["Completions"]


class Completions:
    """Those of a `service`: on its system, and as many at once as it may have turns."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._system = service.system
        self._open: set[str] = set()

    async def complete(self, asked: Completion) -> AsyncGenerator[Continued | Completed, None]:
        """As `kvactors.actors.frontends.server.exchange.completion.Completes.complete`."""
        if self._service.claims.closing:
            raise SystemStopped("the server is stopping and takes no more turns")
        if len(self._open) >= self._service.most:
            raise AdmissionFull(f"{len(self._open)} texts are open; {self._service.most} may be")
        agent = await self._nobody(asked)
        try:
            prompt = await asyncio.to_thread(self._prompt, asked)
            async for told in self._told(asked, prompt, agent):
                yield told
        finally:
            # Its turn, if it still runs, ends with it.
            await self._forget(agent.agent_id)

    async def _nobody(self, asked: Completion) -> Speaker:
        """A new agent. Its name is the same for the same prompt, since draws depend on it, whatever
        others' keys ask meanwhile."""
        said = f"{asked.client.tenant} {asked.prompt!r}"
        digest = xxhash.xxh3_64_hexdigest(said.encode("utf-8", "surrogatepass"))
        names = (f"text-{digest}-{number}" for number in itertools.count())
        free = (name for name in names if not (name in self._open or self._system.find(name)))
        while True:
            agent_id = next(free)
            self._open.add(agent_id)
            try:
                agent = await asyncio.to_thread(self._system.spawn, agent_id)
            except BaseException:
                await self._forget(agent_id)
                raise
            if not agent.transcript().turns:
                return agent
            # It is somebody's, who was stored.
            self._open.discard(agent_id)

    async def _forget(self, agent_id: str) -> None:
        work = asyncio.to_thread(self._system.forget, agent_id)
        forgetting = asyncio.ensure_future(work)
        forgetting.add_done_callback(lambda _: self._open.discard(agent_id))
        with suppress(SystemStopped, AgentNotStored):
            await asyncio.shield(forgetting)

    def _prompt(self, asked: Completion) -> NewTokenIds:
        prompt, system = asked.prompt, self._system
        if isinstance(prompt, str):
            system.chat.check_length(len(prompt), system.info.spec.context)
        ids = system.chat.encode_whole(prompt) if isinstance(prompt, str) else prompt
        given = check_prompt(system.info, ids, messages=None, match=False, threshold=0)
        assert isinstance(given, NewTokenIds)
        return given

    async def _told(
        self, asked: Completion, prompt: NewTokenIds, agent: Speaker
    ) -> AsyncIterator[Continued | Completed]:
        chat, left = self._system.chat, self._system.info.spec.context - len(prompt.token_ids)
        sampling = shortened(asked.sampling, left)
        turn = TurnOptions(
            prompt,
            sampling,
            answer=asked.answer,
            remembered=False,
            lends=True,
            priority=asked.client.priority,
            tenant=asked.client.tenant,
        )
        ticket = agent.open_turn(turn)
        if asked.echo:
            # Log-probabilities of a prompt are known at its end: what is said waits for them.
            scored = (await _reply(ticket)).prompt_logprobs if sampling.prompt_logprobs else ()
            said = TokenTexts(chat, ends=True).tell(scored)
            text = asked.prompt if isinstance(asked.prompt, str) else chat.decode(asked.prompt)
            yield Continued(text, said)
        texts, line = TokenTexts(chat), TokenLine()
        stream = AsyncReplyStream(ticket, sampling.stop, lambda: agent.end_turn(ticket))
        async for piece in stream:
            line.add(texts.tell(piece.logprobs))
            yield Continued(piece.text, line.pass_on(piece.text))
        reply = await _reply(ticket)
        ended = _completed(asked, reply)
        if ended.reason == "length" or not chat.eos.isdisjoint(reply.token_ids[-1:]):
            # No stop string: what is left said nothing.
            yield Continued("", line.rest())
        yield ended


async def _reply(ticket: Ticket) -> Reply:
    reply: Reply = await ticket.reply
    return reply


def _completed(asked: Completion, reply: Reply) -> Completed:
    usage = reply.usage
    cut = reply.finish_reason == "cancelled"
    reason = reply.finish_reason if asked.answer or cut else "length"
    return Completed(
        reason, Usage(usage.prompt_tokens, usage.reused_tokens, usage.generated_tokens)
    )
