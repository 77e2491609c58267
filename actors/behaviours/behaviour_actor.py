"""The actor that runs one agent's behaviour, message by message.

A coroutine that awaits a future gives its thread back; the future's end comes as a message and
resumes it. While a message is handled the prompt lane, in which messages wait, is shut.
"""

import inspect
import logging
from collections.abc import Callable
from time import perf_counter
from typing import Any, Protocol

from pykka import Future

from kvactors.actors.behaviours.behaviour import AgentBehaviour
from kvactors.actors.behaviours.context import Context, Services
from kvactors.actors.behaviours.forgetting import forget_own
from kvactors.actors.behaviours.mail import Deliver, GiveUp
from kvactors.actors.behaviours.runs import (
    ChildFailed,
    GivenUp,
    Restart,
    Resume,
    Run,
    StopBehaviour,
    next_awaited,
)
from kvactors.actors.runtime.dispatcher import SystemActor, handles, send
from kvactors.actors.runtime.futures import ReplyFuture, all_of
from kvactors.actors.runtime.supervision import Restarts, Supervision
from kvactors.actors.runtime.waits import Answer, Waiter, run_as
from kvactors.core.errors import BehaviourFailed, InvalidConfig, SystemStopped
from kvactors.core.trace import Fault, Tracer

__all__ = ["BehaviourActor"]

logger = logging.getLogger(__name__)

MakeBehaviour = Callable[[], AgentBehaviour]


class Supervisor(Services, Protocol):
    """Who began the behaviour."""

    tracer: Tracer
    """Who is told of errors."""
    closed: bool
    """Whether the system stops."""

    def now(self) -> float:
        """Seconds of the system's clock."""

    def ended(self, actor: "BehaviourActor", cause: BaseException | None) -> None:
        """The behaviour of `actor` has ended; `cause`: its error."""

    def restarted(self, agent_id: str) -> None:
        """That of `agent_id` begins anew."""

    def escalate(self, agent_id: str, parent: str | None, error: BaseException) -> None:
        """That of `agent_id` leaves its `error` to its `parent`."""


class BehaviourActor(SystemActor):
    """Runs a behaviour, as `make` makes it, under its `supervision`, for `supervisor`; `context` is
    what it acts through. `parent` is the id of the agent that spawned it. Whoever begins it gives
    it a dispatcher."""

    def __init__(
        self,
        make: MakeBehaviour,
        context: Context,
        supervisor: Supervisor,
        supervision: Supervision,
        parent: str | None,
    ) -> None:
        super().__init__()
        self._agent = context.agent
        self.parent = parent
        self._make = make
        self.context = context
        self._router = context.router
        self._supervisor = supervisor
        self._policy = supervision
        self._restarts = Restarts(supervision)
        self._runs: dict[Run, None] = {}
        self._stopping = False
        self._cause: BaseException | None = None
        self._behaviour = self._made()

    @property
    def blocking(self) -> bool:
        """Whether the behaviour wants a thread of its own."""
        return self._behaviour.blocking

    def on_start(self) -> None:
        """Let the behaviour start."""
        self._begin(Run(None), self._behaviour.on_start)

    def on_stop(self) -> None:
        """Nothing of it runs any more."""
        name, kind = self._agent.agent_id, BehaviourFailed if self._cause else SystemStopped
        lost = kind(f"the behaviour of {name!r} was stopped")
        lost.__cause__ = self._cause
        self._drop_runs(lost)
        self._supervisor.ended(self, self._cause)

    def on_failure(self, _kind: Any, error: Any, _traceback: Any) -> None:
        """A defect in this actor, the `error`: whoever waits is told."""
        self._cause = error
        self.on_stop()

    # -- one message -------------------------------------------------------------------

    @handles(ChildFailed)
    def _child_failed(self, message: ChildFailed) -> None:
        self._fail(Run(None), message.error)

    @handles(StopBehaviour)
    def _stop_when_idle(self, message: StopBehaviour) -> None:
        self._stopping = True
        self.actor_inbox.open_to_prompts = False
        if not self._runs:
            self._stop()
        message.router.outstanding.end_work()

    @handles(Deliver)
    def _deliver(self, message: Deliver) -> None:
        if message.reply is not None and message.reply.done:
            self._router.handled(message, None)
            return
        if not self._in_journal(message):
            return
        self._begin(
            Run(message), lambda: self._behaviour.on_message(message.message, message.sender)
        )

    def _in_journal(self, message: Deliver) -> bool:
        """Write that a message is handled, if there is a journal; one that cannot be written there
        is not handled, as a replay would not know of it."""
        journal = self._router.journal
        try:
            if journal is not None:
                sender = None if message.sender is None else message.sender.agent_id
                journal.message(message.receiver, sender, message.message)
        except Exception as error:  # What a message's own methods may raise, and a full disk.
            logger.error("a message to %r cannot be in the journal: %s", message.receiver, error)
            self._router.failed(message, error)
            return False
        return True

    def _begin(self, run: Run, call: Callable[[], Any]) -> None:
        self._runs[run] = None
        if run.deliver is None or not self._behaviour.reentrant:
            self.actor_inbox.open_to_prompts = False
        try:
            outcome = self._acting(run, call)
        except BaseException as error:
            self._fail(run, error)
            return
        if inspect.iscoroutine(outcome):
            run.work = outcome
            self._advance(run)
        else:
            self._end(run, outcome)

    def _advance(self, run: Run, given_up: GivenUp | None = None) -> None:
        """Run until it awaits a future that is not done, or ends."""
        work = run.work
        assert work is not None
        try:
            awaited = self._acting(run, lambda: next_awaited(work, given_up))
        except StopIteration as stop:
            self._end(run, stop.value)
        except GivenUp:
            self._end(run, None)
        except BaseException as error:
            self._fail(run, error)
        else:
            run.awaited = awaited
            if isinstance(awaited, Answer):
                awaited.want()
            awaited.on_done(lambda _: send(self.actor_ref, Resume(run)))

    def _acting(self, run: Run, call: Callable[[], Any]) -> Any:
        """What `call` gives: whatever answer it awaits, this run of the behaviour waits for it."""
        name = self._agent.agent_id
        self.context.left = run.left if self._policy.on_error == "rewind" else None
        alone = run.deliver is None or not self._behaviour.reentrant
        return run_as(Waiter(self._router.waits, name, name if alone else run.deliver), call)

    @handles(Resume)
    def _resume(self, message: Resume) -> None:
        run = message.run
        # What a message that was given up had awaited may be done while its end awaits another.
        if run in self._runs and run.awaited is not None and run.awaited.done:
            self._advance(run)

    @handles(GiveUp)
    def _give_up(self, message: GiveUp) -> None:
        """End the handling of a message where it waits, behind what it does in `finally`, and what
        it waits for."""
        run = next((run for run in self._runs if run.deliver is message.deliver), None)
        if run is None or run.work is None:
            return
        awaited = run.awaited
        self._advance(run, GivenUp())
        if isinstance(awaited, Answer) and awaited.let_go():
            self._router.give_up(awaited.message, message.error)

    def _end(self, run: Run, value: Any) -> None:
        self._runs.pop(run, None)
        self.actor_inbox.open_to_prompts = not self._stopping
        if isinstance(value, Future) and not isinstance(value, ReplyFuture) and _asked(run):
            # Of somebody else's actor: only a thread can wait for it.
            value = self._supervisor.run_blocking(self._agent.agent_id, value.get)
        if self._stopping and not self._runs:
            self._stop()
        # Last: who waits until the system is idle sees that it has ended.
        self._router.handled(run.deliver, value)

    def _fail(self, run: Run, error: BaseException) -> None:
        """A message failed: its asker is told, and the policy says how to go on."""
        self._runs.pop(run, None)
        if not self._supervisor.closed:
            wait = None if self._stopping else self._restarts.next(self._supervisor.now())
            name, then = self._agent.agent_id, self._restarts.words(wait)
            logger.error("the behaviour of %r raised; %s", name, then, exc_info=error)
            if self._supervisor.tracer.on:
                kind = type(error).__name__
                self._supervisor.tracer.tell(Fault(perf_counter(), "behaviour", name, kind))
            try:
                self._supervise(run, error, wait)
            finally:
                self._router.failed(run.deliver, error)
        else:
            self._router.failed(run.deliver, error)

    def _supervise(self, run: Run, error: BaseException, wait: float | None) -> None:
        if wait is None:
            self._cause = error
            self._stop()
            # Then: the parent may begin it anew at once.
            if self._policy.on_error == "escalate":
                self._supervisor.escalate(self._agent.agent_id, self.parent, error)
            return
        lost = BehaviourFailed(f"the behaviour of {self._agent.agent_id!r} was restarted")
        lost.__cause__ = error
        failed = [run, *self._runs]
        self._drop_runs(lost)
        self.context.close(restart=True)
        self.actor_inbox.open_to_prompts = False
        # With those of the pause that this failure ends, if it does.
        again = Run(None, left=[left for one in failed for left in one.left])
        self._runs[again] = None
        self._router.outstanding.begin_work()
        restart = Restart(again)
        self._supervisor.after(
            wait, lambda: all_of(again.left).on_done(lambda _: send(self.actor_ref, restart))
        )

    def _drop_runs(self, error: BaseException) -> None:
        runs, self._runs = self._runs, {}
        for run in runs:
            if isinstance(run.awaited, Answer):
                run.awaited.let_go()
            if run.work is not None:
                try:
                    run.work.close()
                except BaseException:
                    name = self._agent.agent_id
                    logger.exception("the behaviour of %r raised when it was ended", name)
            self._router.failed(run.deliver, error)

    @handles(Restart)
    def _restart(self, message: Restart) -> None:
        if message.run not in self._runs:
            return
        left, message.run.left = message.run.left, []
        if left:
            forget_own(self._agent, left).on_done(lambda _: send(self.actor_ref, message))
            return
        self._supervisor.restarted(self._agent.agent_id)
        try:
            self._behaviour = self._made()
        except BaseException as error:
            self._fail(message.run, error)
            return
        self._begin(message.run, self._behaviour.on_start)

    def _made(self) -> AgentBehaviour:
        """A behaviour that acts through the context of this actor. Raises InvalidConfig."""
        behaviour = self._make()
        if not isinstance(behaviour, AgentBehaviour):
            raise InvalidConfig(f"behaviour made no AgentBehaviour, but {behaviour!r}")
        behaviour.bind(self.context)
        return behaviour


def _asked(run: Run) -> bool:
    return run.deliver is not None and run.deliver.reply is not None
