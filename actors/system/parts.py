"""The parts of an AgentSystem, and how each is given what it needs of the others."""

import atexit
import functools
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from kvactors.actors.agents.host import AgentHost
from kvactors.actors.behaviours.journal import Journal
from kvactors.actors.behaviours.router import MessageRouter
from kvactors.actors.behaviours.supervisor import BehaviourSupervisor
from kvactors.actors.runtime.blocking import check_outside_of_actors
from kvactors.actors.runtime.dispatcher import send
from kvactors.actors.runtime.mailbox import LanePolicy
from kvactors.actors.system.backups import StoreBackups
from kvactors.actors.system.exchange import AgentExchange
from kvactors.actors.system.lifecycle import Lifecycle
from kvactors.actors.system.registry import AgentRegistry
from kvactors.actors.system.residency import Residency
from kvactors.actors.system.roster import AgentRoster
from kvactors.actors.system.swap import ModelSwap
from kvactors.actors.system.watching import Watching
from kvactors.actors.turns.checks import check_wait
from kvactors.actors.turns.messages_agent import CancelTurn
from kvactors.actors.turns.ticket import next_serial
from kvactors.actors.workers.gpu import leave_mlx
from kvactors.core.engine.launch import Launch
from kvactors.core.errors import InvalidConfig, SystemRunning, SystemStopped
from kvactors.persistence.files.encryption import EncryptionKey

__all__ = ["Parts", "offered"]

logger = logging.getLogger(__name__)

# Seconds that `stop` waits without a word.
SILENT = 2.0
# Seconds that cancelled turns get to end and to be saved once the time is up.
GRACE = 2.0
# Seconds that a start that is interrupted waits for what it has begun.
LEAVING = 1.0
# Seconds that the process then waits for that model at its end.
LOADING = 3.0

# Not weakly: one that nobody refers to any more still has to save and to end its threads.
_running: "set[Parts]" = set()

P = ParamSpec("P")
R = TypeVar("R")


class Parts:
    """What one system is made of. Nothing here is promised to stay as it is.

    `lifecycle` has its actors and threads, `launch` loads its model; `isolated`, `lane` and
    `log_text` are what its agents are given; `journal` is the file of what behaviours are told,
    `store` the directory of the store, which is sealed with `encryption_key`.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        launch: Launch,
        *,
        isolated: bool,
        lane: LanePolicy,
        log_text: bool,
        journal: str | Path | None,
        store: Path | None,
        encryption_key: EncryptionKey | None,
    ) -> None:
        self._journal = journal
        self.store = store
        self.encryption_key = encryption_key
        self._life = threading.RLock()
        self.lifecycle = lifecycle
        self.router = MessageRouter(
            lifecycle.outstanding,
            lambda agent_id: self.agents.find(agent_id),
            lifecycle.after,
            lifecycle.waits,
        )
        self.behaviours = BehaviourSupervisor(
            self.router,
            lambda *args, **options: self.agents.spawn(*args, **options),
            lifecycle.now,
            lambda: lifecycle.pool,
            lifecycle.tracer,
            deterministic=lifecycle.deterministic,
        )
        self.host = AgentHost(
            lifecycle.outstanding,
            lifecycle.after,
            self.router.post,
            self.router.ask,
            lifecycle.require_running,
            lifecycle.now,
        )
        self.agents = AgentRegistry(
            lifecycle, self.host, self.behaviours, isolated=isolated, lane=lane, log_text=log_text
        )
        self.backups = StoreBackups(lifecycle)
        self.exchange = AgentExchange(lifecycle, self.host, self.agents)
        self.residency = Residency(lifecycle, self.host, self.agents, self.behaviours)
        self.roster = AgentRoster(lifecycle, self.host, self.agents)
        self.swap = ModelSwap(launch, lifecycle, self.host, self.agents)
        self.watching = Watching(lifecycle, self.host, self.agents)

    def start(self) -> None:
        """Start each. Raises SystemRunning, SystemStopped, StorageError, ModelError,
        InvalidConfig."""
        with self._life:
            state = self.lifecycle.state
            if state != "new":
                kind = SystemRunning if state == "running" else SystemStopped
                raise kind(f"a system starts once, and this one is {state}: make another one")
            try:
                self.host.model = self.lifecycle.start(self.swap.launch)
                if self._journal is not None:
                    self.router.journal = Journal(self._journal)
            except BaseException as error:
                self.lifecycle.state = "stopped"
                # Who presses Ctrl-C does not wait for a model that is being loaded.
                self.lifecycle.stop((), None if isinstance(error, Exception) else LEAVING)
                raise
            self.lifecycle.state = "running"
            _running.add(self)
            self.watching.begin(self.store)

    async def start_async(self) -> None:
        """`start`, while the asyncio loop goes on. Raises InvalidConfig in deterministic mode."""
        import asyncio

        if self.lifecycle.deterministic:
            raise InvalidConfig(
                "a deterministic system goes on only while its one thread waits: use `with`"
            )
        try:
            await asyncio.to_thread(self.start)
        except asyncio.CancelledError:
            # It starts all the same, on its thread.
            await asyncio.to_thread(self.stop, None, cancel=True)
            raise

    async def stop_async(self, *, cancel: bool) -> None:
        """`stop`, while the asyncio loop goes on; what cancels its task cancels turns."""
        import asyncio

        try:
            await asyncio.to_thread(self.stop, None, cancel=cancel)
        except asyncio.CancelledError:
            self._cancel_everything()
            raise

    def stop(self, timeout: float | None, *, cancel: bool) -> None:
        """End each in its order: what is accepted first, or `cancel` it at once. After `timeout`
        seconds what still runs is cancelled. Raises InvalidInput, BlockingCall inside an actor."""
        timeout = check_wait(timeout)
        check_outside_of_actors()
        lifecycle = self.lifecycle
        with self._life:
            if lifecycle.state != "running":
                lifecycle.state = "stopped"
                return
            deadline = None if timeout is None else time.monotonic() + timeout
            lifecycle.outstanding.refuse(SystemStopped("the system is stopped"))
            self.behaviours.close()
            try:
                self._wait_for_turns(timeout, cancel=cancel)
            finally:
                agents = self.agents.close()
                self.watching.close()
                left = None if deadline is None else max(1.0, deadline - time.monotonic())
                lifecycle.stop(agents, left)
                if self.router.journal is not None:
                    self.router.journal.close()
                _running.discard(self)

    def _wait_for_turns(self, timeout: float | None, *, cancel: bool) -> None:
        """Wait for turns and saves; cancel them at once, after `timeout`, or on Ctrl-C."""
        outstanding = self.lifecycle.outstanding
        self.lifecycle.after(SILENT, self._say_what_runs)
        try:
            if cancel:
                self._cancel_everything()
            if not outstanding.wait(timeout):
                self._cancel_everything()
                outstanding.wait(GRACE)
        except KeyboardInterrupt:
            self._cancel_everything()
            outstanding.wait(timeout)
            raise

    def _say_what_runs(self) -> None:
        """A line of the log for whoever wonders why the program does not end."""
        if left := self.lifecycle.outstanding.described():
            logger.warning("stopping waits for %s; Ctrl-C cancels turns", left)

    def _cancel_everything(self) -> None:
        for ticket in self.lifecycle.outstanding.turns():
            actor = self.agents.actor(ticket.agent_id)
            if actor is not None:
                send(actor.actor_ref, CancelTurn(ticket, serial=next_serial()))
        self.behaviours.give_up_calls()

    def abandon(self) -> None:
        """In a forked child: none of the threads is there; the system stays the parent's."""
        self.agents.abandon()
        self.lifecycle.abandon()
        self.watching.abandon()


def offered(
    part: str, method: Callable[Concatenate[Any, P], R]
) -> Callable[Concatenate[Any, P], R]:
    """A method of a part, as a method of the system: `find = offered("agents", AgentRegistry.find)`
    makes `system.find(...)` what `system.parts.agents.find(...)` is."""

    @functools.wraps(method)
    def call(system: Any, /, *args: P.args, **options: P.kwargs) -> R:
        found: R = getattr(getattr(system.parts, part), method.__name__)(*args, **options)
        return found

    return call


def _abandon_all() -> None:
    for parts in list(_running):
        parts.abandon()
    _running.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)


@atexit.register
def _stop_leftovers() -> None:
    """Systems that nobody stopped: cancel their turns, save what is finished. And a model that is
    still being loaded for somebody who was interrupted."""
    try:
        for parts in list(_running):
            parts.stop(10.0, cancel=True)
    finally:
        leave_mlx(LOADING)
