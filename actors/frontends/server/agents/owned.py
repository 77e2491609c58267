"""The agents of one API key: nobody sees another key's, or learns of it. The event loop.

Agents that are made here are registered by their key. Names are a key's own: two keys may each have
an "ann", whose ids in the system begin with the keys' hashes. Without keys all agents are seen,
those of other programs on the same store too.
"""

import asyncio
import secrets
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

from kvactors.actors.agents.handle import Agent
from kvactors.actors.errors import AgentExists, AgentNotStored
from kvactors.actors.frontends.server.answering.service import Service
from kvactors.actors.frontends.server.exchange.answers import AgentBusy
from kvactors.actors.frontends.server.identity.index import Known
from kvactors.actors.frontends.server.wire.asking import readable
from kvactors.actors.system.roster import AgentState
from kvactors.actors.system.system import AgentSystem
from kvactors.core.conversation.context_policy import ContextPolicy
from kvactors.core.errors import RewindOutOfRange

__all__ = ["OwnedAgents", "end_of"]

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OwnedAgents:
    """What the key of a `tenant` has in a `service`; "" without keys. Ids are the client's."""

    service: Service
    tenant: str

    @property
    def system(self) -> AgentSystem:
        """The one of the service: a cluster's front has no such routes."""
        assert isinstance(self.service.system, AgentSystem)
        return self.service.system

    # -- who is who --------------------------------------------------------------------

    def shown(self, agent_id: str) -> str:
        """How the client calls an agent of its own."""
        text = agent_id.encode("utf-8", "backslashreplace").decode()
        return text.removeprefix(f"{self.tenant}/") if self.tenant else text

    async def owns(self, inner: str) -> bool:
        """Whether the client may see the agent that the system calls so."""
        if not self.tenant:
            return True
        known = await self._known(inner)
        return known is not None and known.tenant == self.tenant

    async def inner(self, agent_id: str) -> str:
        """The system's id of an agent that is there. Raises AgentNotStored, InvalidAgentId."""
        names = (f"{self.tenant}/{agent_id}", agent_id) if self.tenant else (agent_id,)
        for name in names:
            if await self.owns(name) and await self._exists(name):
                return name
        raise AgentNotStored(agent_id, "here")

    # -- reading -----------------------------------------------------------------------

    async def every(self) -> list[AgentState]:
        """All, the last used first."""
        states = await self._states()
        mine: set[str] | None = None
        if self.tenant:
            mine = await self.service.claims.on_index(
                lambda: self.service.index.of_tenant(self.tenant)
            )
        return await asyncio.to_thread(_last_first, states, mine)

    async def state(self, agent_id: str) -> AgentState:
        """One of them. Raises AgentNotStored."""
        (found,) = await self._states(await self.inner(agent_id))
        return found

    async def agent(self, agent_id: str) -> Agent:
        """Its handle. Raises AgentNotStored, LedgerUnreadable."""
        return await self._handle(await self.inner(agent_id))

    async def export(self, agent_id: str, path: Path, form: str) -> None:
        """Write `agent_id` to a new file at `path`, of this `form`. Raises AgentNotStored, and as
        `AgentSystem.export_agent`."""
        inner, export = await self.inner(agent_id), self.system.export_agent
        await asyncio.to_thread(export, inner, path, format=form)

    # -- making and forgetting ---------------------------------------------------------

    async def spawn(self, agent_id: str | None, system: str | None, policy: ContextPolicy) -> str:
        """A new agent, `agent_id` or one with a name of its own, with the prompt `system` and this
        `policy`; its id. Raises AgentExists."""
        spawn = self.system.spawn
        make = partial(spawn, system_prompt=system, context_policy=policy)
        return await self._make(agent_id, make, system or "")

    async def fork(
        self,
        parent: str,
        agent_id: str | None,
        keep: int | None,
        policy: ContextPolicy = "refuse",
    ) -> str:
        """A new agent, `agent_id`, with the memory of `parent`, or the first `keep` turns of it,
        and this `policy`; its id. Raises AgentExists, AgentNotStored, RewindOutOfRange."""
        source = await self.agent(parent)
        if keep is not None:
            end_of(source, keep)

        def make(inner: str) -> None:
            child = self.system.spawn(inner, from_=source, context_policy=policy)
            try:
                if keep is not None:
                    child.rewind(to_token=end_of(child, keep)).get().durable.get()
            except BaseException:
                self.system.forget(inner)
                raise

        known = await self._known(source.agent_id)
        return await self._make(agent_id, make, known.prompt if known else "")

    async def import_file(self, agent_id: str, path: Path, form: str | None) -> str:
        """The agent of the file at `path`, of this `form` (None finds it out), as `agent_id`.
        Raises as `AgentSystem.import_agent`."""
        import_agent = self.system.import_agent
        return await self._make(agent_id, lambda inner: import_agent(path, inner, format=form))

    async def forget(self, agent_id: str) -> None:
        """Delete it. Raises AgentNotStored, AgentBusy."""
        inner = await self.inner(agent_id)
        if not await self.service.claims.forget(inner):
            raise AgentBusy(agent_id)

    async def prefetch(self, agent_id: str) -> None:
        """Read its KV ahead. Raises AgentNotStored."""
        inner = await self.inner(agent_id)
        await asyncio.to_thread(self.system.prefetch, inner)

    # -- what is behind it -------------------------------------------------------------

    async def _make(
        self, agent_id: str | None, make: Callable[[str], object], prompt: str = ""
    ) -> str:
        name = readable("id", agent_id or f"a-{secrets.token_hex(6)}")
        inner = f"{self.tenant}/{name}" if self.tenant else name
        async with self.service.claims.hold(inner):
            if await self._exists(inner):
                raise AgentExists(name)
            claims, index = self.service.claims, self.service.index
            anew = f"agent:{name}", "{}", "{}"
            known = Known(inner, self.tenant, *anew, named=True, prompt=prompt)
            had = await self._known(inner)
            if had is None:
                # Before it is made: nobody would reach whom a crash left between.
                await claims.on_index(partial(index.begin, known))
            try:
                await claims.beside(partial(make, inner))
            except Exception:
                if had is None:
                    with suppress(sqlite3.DatabaseError):
                        await claims.on_index(partial(index.forget, inner))
                raise
            if had is not None:
                await claims.on_index(partial(index.begin, known))
        return name

    async def _known(self, inner: str) -> Known | None:
        return await self.service.claims.on_index(lambda: self.service.index.known(inner))

    async def _handle(self, inner: str) -> Agent:
        # Not spawned again: that would set its context policy anew.
        system = self.system
        found = system.find(inner)
        if found is not None:
            return found
        return await asyncio.to_thread(system.spawn, inner)

    async def _exists(self, inner: str) -> bool:
        # One that was spawned is known without waiting for the step that runs.
        return self.system.find(inner) is not None or bool(await self._states(inner))

    async def _states(self, *inner: str) -> list[AgentState]:
        return await asyncio.to_thread(self.system.known_agents, *inner)


def _last_first(states: list[AgentState], mine: set[str] | None) -> list[AgentState]:
    """Those of `mine` or, without, all, the last used first."""
    some = states if mine is None else [state for state in states if state.agent_id in mine]
    return sorted(some, key=lambda state: -(state.last_used or float("inf")))


def end_of(agent: Agent, keep: int) -> int:
    """Tokens of an agent's first `keep` turns. Raises RewindOutOfRange."""
    turns = agent.transcript().turns
    if keep > len(turns):
        raise RewindOutOfRange(f"cannot keep {keep} turns: the agent remembers {len(turns)}")
    return sum(len(turn.token_ids) for turn in turns[:keep])
