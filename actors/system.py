"""AgentSystem: starts the actors, wires them, and ends them in order."""

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kvactors.actors.agent import AgentActor, Wiring
from kvactors.actors.crew import Crew
from kvactors.actors.dispatcher import MailboxFull, send
from kvactors.actors.errors import LedgerUnreadable
from kvactors.actors.exchange import Exchange
from kvactors.actors.gpu import OnProgress
from kvactors.actors.handle import Agent
from kvactors.actors.launch import Launch, ModelInfo, callable_name, parse_budget
from kvactors.actors.messages import (
    CancelTurn,
    Forget,
    ForgetStored,
    Prompt,
    ReadLedger,
    ReadStats,
)
from kvactors.actors.parameters import (
    check_id,
    check_parameters,
    check_storage,
    check_system_prompt,
)
from kvactors.actors.reply import Ticket
from kvactors.core.errors import InvalidConfig, SystemStopped, TurnTimeout
from kvactors.core.options import ModelOptions
from kvactors.core.spec import ModelCacheSpec
from kvactors.core.template import ChatFormat
from kvactors.core.transcript import Transcript
from kvactors.persistence.sealing import EncryptionKey
from kvactors.persistence.store import DEFAULT_MAX_DISK, Store

__all__ = ["AgentSystem", "default_store"]

# Seconds that cancelled turns get to end and to be saved once the time is up.
GRACE = 2.0

_running: "weakref.WeakSet[AgentSystem]" = weakref.WeakSet()


def default_store() -> Path:
    """Where memories are kept if no store is named: `$KVACTORS_HOME`, else `~/.kvactors`."""
    return Path(os.environ.get("KVACTORS_HOME") or Path.home() / ".kvactors")


class AgentSystem(Exchange):
    """Agents that own persistent KV caches, batched by one GPU actor.

    Args:
        model: "default", a directory, a hub name, or a callable that returns (model,
            tokenizer) and runs on the GPU thread; with a store a callable needs a name
            of its own (a function's name, or `model_name`).
        store: a directory; None is `$KVACTORS_HOME` or `~/.kvactors`; False keeps nothing.
        kv_bits: 4, 8 or None (float).
        group_size: of the quantization; unset chooses 64, else 32, else float per layer.
        max_batch: turns that run at once.
        memory_budget: bytes of KV in memory, or "8GB"; unset is half of what the device has
            left once the model is loaded.
        context: tokens an agent may remember; lowers the model's own limit.
        dtype: "auto" computes in the weights' dtype, in float32 on the CPU.
        attention: "auto", "packed" or "dequantize" (`kvactors.core.attention`).
        reproducible: fix chunk ends, paths and extents so that a run repeats bit for bit.
        template_kwargs: passed to the chat template.
        progress: called on the GPU thread as progress(agent_id, done, total) in prefills.
        model_name: name of the model in messages and, for a callable, in its identity.
        max_disk: bytes of KV on disk before the least recently used is evicted.
        encryption_key: 32 bytes, or a callable that returns them: what is stored is encrypted.
        target_latency: seconds between two tokens of an agent while others prefill.

    Raises InvalidConfig at construction; ModelError and StorageError from `start`.
    """

    def __init__(
        self,
        model: "str | Path | Callable[[], Any]" = "default",
        store: "str | Path | bool | None" = None,
        *,
        kv_bits: int | None = 4,
        group_size: int | None = None,
        max_batch: int = 16,
        memory_budget: int | str | None = None,
        context: int | None = None,
        dtype: str = "auto",
        attention: str = "auto",
        reproducible: bool = False,
        template_kwargs: dict[str, Any] | None = None,
        progress: OnProgress | None = None,
        model_name: str | None = None,
        max_disk: int | None = DEFAULT_MAX_DISK,
        encryption_key: EncryptionKey | None = None,
        target_latency: float = 0.1,
    ) -> None:
        check_parameters(model, max_batch=max_batch, target_latency=target_latency)
        check_storage(store, max_disk, encryption_key)
        stored = store is not False
        unnamed = store is None or isinstance(store, bool)
        path = default_store() if unnamed else Path(str(store)).expanduser()
        opener = partial(Store, path, max_disk=max_disk, encryption_key=encryption_key)
        self._open_store = opener if stored else None
        self._on_progress = progress
        options = ModelOptions(
            kv_bits=kv_bits,
            group_size=group_size,
            context=context,
            dtype=dtype,
            attention=attention,
            reproducible=reproducible,
            template_kwargs=template_kwargs,
            name=model_name or callable_name(model),
        )
        if callable(model) and options.name is None and stored:
            raise InvalidConfig(
                "a callable model needs a name of its own to be stored under: pass a named "
                "function, or model_name="
            )
        self._launch = Launch(
            model,
            options,
            max_batch=max_batch,
            memory_budget=parse_budget(memory_budget),
            target_latency=target_latency,
            stored=stored,
        )
        self._life = threading.RLock()
        self._lock = threading.RLock()
        self._agents: dict[str, Agent] = {}
        self._crew = Crew()
        self._state = "new"
        self._info: ModelInfo | None = None

    # -- life --------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        interrupted = error is not None and not isinstance(error, Exception)
        self._stop(None, cancel=interrupted)

    def start(self) -> None:
        """Open the store, load and probe the model; returns when agents can be asked."""
        with self._life:
            if self._state != "new":
                raise SystemStopped(f"a system starts once; this one is {self._state}")
            try:
                self._info = self._crew.start(self._launch, self._open_store, self._on_progress)
            except BaseException:
                self._state = "stopped"
                self._crew.stop(())
                raise
            self._state = "running"
            _running.add(self)

    def stop(self, timeout: float | None = None) -> None:
        """Finish running and queued turns and pending saves, then end every thread.

        After `timeout` seconds what still runs is cancelled. Idempotent.
        """
        self._stop(timeout, cancel=False)

    def _stop(self, timeout: float | None, *, cancel: bool) -> None:
        with self._life:
            if self._state != "running":
                self._state = "stopped"
                return
            deadline = None if timeout is None else time.monotonic() + timeout
            self._crew.outstanding.refuse(SystemStopped("the system is stopped"))
            try:
                self._wait_for_turns(timeout, cancel)
            finally:
                with self._lock:
                    self._state = "stopped"
                    agents = [agent._actor.actor_ref for agent in self._agents.values()]
                left = None if deadline is None else max(1.0, deadline - time.monotonic())
                self._crew.stop(agents, left)
                _running.discard(self)

    def _wait_for_turns(self, timeout: float | None, cancel: bool) -> None:
        """Wait for turns and saves; cancel them at once, after `timeout`, or on Ctrl-C."""
        try:
            if cancel:
                self._cancel_everything()
            if not self._crew.outstanding.wait(timeout):
                self._cancel_everything()
                self._crew.outstanding.wait(GRACE)
        except KeyboardInterrupt:
            self._cancel_everything()
            self._crew.outstanding.wait(timeout)
            raise

    def _cancel_everything(self) -> None:
        with self._lock:
            agents = dict(self._agents)
        for ticket in self._crew.outstanding.turns():
            agent = agents.get(ticket.agent_id)
            if agent is not None:
                agent._cancel(ticket)

    # -- agents ------------------------------------------------------------------------

    def spawn(self, agent_id: str, system_prompt: str | None = None) -> Agent:
        """The agent of this id, restored if the store knows it. Writes nothing, reads no KV.

        `system_prompt` None means as stored. Raises InvalidAgentId, SystemPromptMismatch,
        LedgerUnreadable (for that agent alone), SystemStopped.
        """
        check_id(agent_id)
        check_system_prompt(system_prompt)
        with self._lock:
            self._require_running()
            known = self._agents.get(agent_id)
            if known is None:
                known = self._restore(agent_id, system_prompt)
                self._agents[agent_id] = known
            else:
                known._actor.transcript.require_system_prompt(system_prompt)
            return known

    def agents(self) -> list[Agent]:
        """The agents spawned in this system, in the order of their ids."""
        with self._lock:
            return [self._agents[agent_id] for agent_id in sorted(self._agents)]

    def forget(self, agent_id: str) -> None:
        """Delete an agent from memory and disk; its running turn fails."""
        check_id(agent_id)
        with self._lock:
            self._require_running()
            agent = self._agents.pop(agent_id, None)
            if agent is not None:
                agent._actor.actor_ref.stop()
            self._crew.ask(self._crew.gpu, Forget(agent_id))
            if self._crew.persistence is not None:
                self._crew.ask(self._crew.persistence, ForgetStored(agent_id))

    def stats(self) -> dict[str, int]:
        """Counts and bytes of the engine, and how many agents and turns there are."""
        self._require_running()
        engine: dict[str, int] = self._crew.ask(self._crew.gpu, ReadStats())
        return {
            "agents": len(self._agents),
            "outstanding_turns": len(self._crew.outstanding.turns()),
            **engine,
        }

    def wait_idle(self, timeout: float | None = None) -> bool:
        """Wait until no turn runs or waits and every save is on disk.

        Returns False if `timeout` seconds pass first.
        """
        return self._crew.outstanding.wait(timeout)

    @property
    def info(self) -> ModelInfo:
        """The loaded model: name, cache spec, fingerprint, device, memory budget."""
        if self._info is None:
            raise SystemStopped("the system has not been started: use `with` or start()")
        return self._info

    @property
    def chat(self) -> ChatFormat:
        """Tokenizer and chat template of the model."""
        return self.info.chat

    @property
    def spec(self) -> ModelCacheSpec:
        """Cache spec of the model."""
        return self.info.spec

    def send(
        self,
        actor: AgentActor,
        make: Callable[[Ticket], Prompt],
        timeout: float | None,
        *,
        streamed: bool,
    ) -> Ticket:
        """Accept a turn for an agent of this system. For `Agent`."""
        ticket = Ticket.begin(actor.agent_id, streamed=streamed)
        self._crew.outstanding.begin_turn(ticket)
        try:
            accepted = send(actor.actor_ref, make(ticket))
        except MailboxFull as error:
            ticket.reject(error)
            raise
        if not accepted:
            gone = SystemStopped(f"agent {actor.agent_id!r} was forgotten or stopped")
            ticket.reject(gone)
            raise gone
        if timeout is not None:
            # Weakly: a reply that arrived long ago is not kept for its deadline.
            late = weakref.ref(ticket)
            self._crew.timer.after(timeout, lambda: _expire(actor, late(), timeout))
        return ticket

    def _restore(self, agent_id: str, system_prompt: str | None) -> Agent:
        records = None
        if self._crew.persistence is not None:
            records = self._crew.ask(self._crew.persistence, ReadLedger(agent_id))
        info = self.info
        try:
            transcript = Transcript.restore(info.chat, info.tokenizer_id, records or ())
        except (KeyError, TypeError, ValueError) as error:
            raise LedgerUnreadable(
                f"the ledger of {agent_id!r} holds records of another form: {error}"
            ) from error
        if records:
            transcript.require_system_prompt(system_prompt)
        else:
            transcript.system_prompt = system_prompt
        wiring = Wiring(
            self._crew.gpu,
            self._crew.persistence,
            self._crew.outstanding,
            info.chat,
            info.fingerprint,
            info.spec.context,
            self._crew.pool,
        )
        actor = AgentActor(agent_id, transcript, wiring)
        actor.begin()
        return Agent(self, actor)

    def _require_running(self) -> None:
        if self._state != "running":
            raise SystemStopped(f"the system is {self._state}: use it inside `with`")


def _expire(actor: AgentActor, ticket: Ticket | None, seconds: float) -> None:
    if ticket is not None and not ticket.reply.done:
        late = TurnTimeout(f"the turn of {actor.agent_id!r} took longer than {seconds:g} s")
        send(actor.actor_ref, CancelTurn(ticket, late))


@atexit.register
def _stop_leftovers() -> None:
    """Systems that nobody stopped: cancel their turns, save what is finished."""
    for system in list(_running):
        system._stop(10.0, cancel=True)
