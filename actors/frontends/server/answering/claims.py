"""Claims: who takes which turn by now, for an agent takes one at a time.

One thread of its own plans turns over the index, and sees who is busy; agents are made on others.
"""

import asyncio
import math
import sqlite3
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TypeVar

from kvactors.actors.errors import AgentExists, AgentNotStored, StorageError
from kvactors.actors.frontends.server.answering.home import Home, Speaker
from kvactors.actors.frontends.server.answering.taken import standing
from kvactors.actors.frontends.server.exchange.answers import AgentBusy
from kvactors.actors.frontends.server.exchange.inquiry import Inquiry
from kvactors.actors.frontends.server.identity.index import Index
from kvactors.actors.frontends.server.identity.plan import Plan
from kvactors.actors.frontends.server.identity.resolve import Resolver
from kvactors.actors.frontends.server.identity.rules import Rule
from kvactors.core.errors import KvactorsError, SystemStopped

__all__ = ["Claims"]

# Parents that may be found forgotten or damaged when they are forked, before a turn does without.
PARENTS = 2
# Seconds that who is cancelled waits for an agent that is just being made.
LEAVING = 1.0
_T = TypeVar("_T")


class Claims:
    """Those of clients on the agents of a `system`, found through `index` by `rules`; at most
    `most` agents are made at once. While it is `closing` there are no new ones."""

    def __init__(self, system: Home, index: Index, rules: Sequence[Rule], most: int) -> None:
        self.closing = False
        self._system = system
        self._index = index
        self._resolver = Resolver(index, rules, partial(standing, system))
        self._planner = ThreadPoolExecutor(1, "kvactors-index")
        # A fork waits for the store; others must not wait behind it.
        self._spawner = ThreadPoolExecutor(most, "kvactors-spawn")
        self._busy: set[str] = set()

    async def on_index(self, work: Callable[[], _T]) -> _T:
        """What `work` returns, done on the thread of the index."""
        return await asyncio.get_running_loop().run_in_executor(self._planner, work)

    async def take(
        self, inquiry: Inquiry, asked: Callable[[Plan, Speaker], _T]
    ) -> tuple[Plan, Speaker, _T]:
        """Who takes the turn of an `inquiry`, as planned: claimed, and there; and what they are
        `asked`, found where others may wait, too. Raises as `Resolver.plan`, KvactorsError."""
        taken, lost = set[str](), 0
        while True:
            alone = lost == PARENTS
            plan = await self.on_index(partial(self._claim, inquiry, taken, alone=alone))
            made = list[Speaker]()
            making = asyncio.ensure_future(self.beside(partial(self._prepare, plan, asked, made)))
            try:
                agent, what = await asyncio.shield(making)
            except AgentExists:
                await self._give_back(plan)
                taken.add(plan.known.agent_id)
            except StorageError:
                await self._give_back(plan)
                if not plan.parent or alone:
                    raise
                # Forgotten since it was planned with, or it cannot be read.
                lost += 1
            except BaseException:
                # It goes on where we are cancelled, and may take long.
                await asyncio.wait({making}, timeout=LEAVING)
                making.add_done_callback(lambda done: done.cancelled() or done.exception())
                # Who was not made for it may have been there before: they are not forgotten.
                if made:
                    await self.let_go(plan)
                elif making.done():
                    await self._give_back(plan)
                else:
                    self.release(plan)
                raise
            else:
                return plan, agent, what

    def release(self, plan: Plan) -> None:
        """The turn of a `plan` is over."""
        self._busy.discard(plan.known.agent_id)

    async def _give_back(self, plan: Plan) -> None:
        """Who was to take the turn of a `plan` was not made."""

        def back() -> None:
            with suppress(sqlite3.DatabaseError):
                if plan.fresh:
                    self._index.forget(plan.known.agent_id)
            self.release(plan)

        await self.on_index(back)

    async def let_go(self, plan: Plan) -> None:
        """Nothing comes of a `plan`; who was made for it goes."""
        self.release(plan)
        if plan.fresh:
            with suppress(KvactorsError, asyncio.CancelledError):
                await self.forget(plan.known.agent_id)

    @asynccontextmanager
    async def hold(self, agent_id: str) -> AsyncGenerator[None, None]:
        """Nobody else takes turns of an agent meanwhile: requests of its conversation go to a fork.
        Raises AgentBusy, SystemStopped."""
        if self.closing:
            raise SystemStopped("the server is stopping and takes no more turns")

        def claim() -> None:
            if agent_id in self._busy:
                raise AgentBusy(agent_id)
            # Of a full disk: it only goes sooner.
            with suppress(sqlite3.DatabaseError):
                self._index.touch(agent_id)
            self._busy.add(agent_id)

        await self.on_index(claim)
        try:
            yield
        finally:
            self._busy.discard(agent_id)

    async def idle_agents(self, before: float) -> list[str]:
        """Agents without a name that were last used before a time, in seconds since 1970."""
        return await self.on_index(lambda: self._index.idle(before))

    async def while_free(
        self, agent_id: str, work: Callable[[str], None], *, unused_since: float = math.inf
    ) -> bool:
        """Do `work` with the agent `agent_id`, and whether it was done: not while that answers, nor
        if it was used `unused_since` a time, and it answers nobody meanwhile. Raises what `work`
        raises."""

        def done() -> bool:
            known = self._index.known(agent_id)
            unused = known is None or known.used < unused_since
            if free := unused and agent_id not in self._busy:
                work(agent_id)
            return free

        return await self.on_index(done)

    async def forget(self, agent_id: str, *, unused_since: float = math.inf) -> bool:
        """Delete an agent and what is known of it; not while it answers, nor if it was used
        `unused_since` a time. Raises KvactorsError."""

        def work(agent_id: str) -> None:
            with suppress(AgentNotStored):
                self._system.forget(agent_id)
            self._index.forget(agent_id)

        return await self.while_free(agent_id, work, unused_since=unused_since)

    def close(self) -> None:
        """End the threads, and close the index."""
        self._spawner.shutdown(wait=False, cancel_futures=True)
        self._planner.shutdown()
        self._index.close()

    def _claim(self, inquiry: Inquiry, taken: set[str], *, alone: bool) -> Plan:
        plan = self._resolver.plan(inquiry, self._busy | taken, alone=alone)
        if plan.fresh:
            # Before it is made: nobody would find, or ever forget, whom a crash left between.
            self._index.begin(plan.known)
        self._busy.add(plan.known.agent_id)
        return plan

    async def beside(self, work: Callable[[], _T]) -> _T:
        """What `work` returns, which may wait for an agent's turn to end: on a thread that nobody
        else waits for."""
        return await asyncio.get_running_loop().run_in_executor(self._spawner, work)

    def _prepare(
        self, plan: Plan, asked: Callable[[Plan, Speaker], _T], made: list[Speaker]
    ) -> tuple[Speaker, _T]:
        made.append(agent := self._make(plan))
        return agent, asked(plan, agent)

    def _make(self, plan: Plan) -> Speaker:
        """The agent of a `plan`. Raises AgentExists for one that has something to lose: clients
        take nobody's memory."""
        name = plan.known.agent_id
        if plan.parent:
            return self._system.spawn(name, from_=plan.parent, wait=False)
        if plan.fresh and self._system.find(name) is not None:
            raise AgentExists(name, "is the program's")
        agent = self._system.spawn(name)
        if not plan.keep and (agent.transcript().turns or (plan.fresh and agent.system_prompt)):
            raise AgentExists(name, "remembers something else")
        return agent
