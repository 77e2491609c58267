"""AgentSystem: starts the actors, wires them, and ends them in order."""

import atexit
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kvactors.actors.deterministic import CountingClock
from kvactors.actors.futures import check_outside_of_actors
from kvactors.actors.gpu import OnProgress
from kvactors.actors.journal import Journal
from kvactors.actors.launch import Launch
from kvactors.actors.mailbox import DEFAULT_LANE, LanePolicy
from kvactors.actors.messages import CountStored, ReadStats
from kvactors.actors.outstanding import MAX_UNSAVED
from kvactors.actors.parameters import (
    callable_name,
    check_isolation,
    check_parameters,
    check_seconds,
    check_storage,
    parse_budget,
    parse_bytes,
)
from kvactors.actors.seeing import Seeing
from kvactors.core.errors import SystemStopped
from kvactors.core.eviction import EvictionPolicy, check_eviction
from kvactors.core.options import ModelOptions
from kvactors.core.precision import KVBits
from kvactors.core.spec import ModelCacheSpec
from kvactors.core.template import ChatFormat
from kvactors.persistence.listing import StoreCounts
from kvactors.persistence.sealing import EncryptionKey
from kvactors.persistence.store import DEFAULT_MAX_DISK, Store

__all__ = ["AgentSystem", "default_store"]

# Seconds that cancelled turns get to end and to be saved once the time is up.
GRACE = 2.0

# Not weakly: one that nobody refers to any more still has to save and to end its threads.
_running: "set[AgentSystem]" = set()


def default_store() -> Path:
    """Where memories are kept if no store is named: `$KVACTORS_HOME`, else `~/.kvactors`."""
    return Path(os.environ.get("KVACTORS_HOME") or Path.home() / ".kvactors")


class AgentSystem(Seeing):
    """Agents that own persistent KV caches, batched by one GPU actor.

    Args:
        model: "default", a directory, a hub name, or a callable that returns (model,
            tokenizer) and runs on the GPU thread; with a store a callable needs a name
            of its own (a function's name, or `model_name`).
        store: a directory; None is `$KVACTORS_HOME` or `~/.kvactors`; False keeps nothing.
        kv_bits: 4, 8 or None (float); "k8v4", keys and values apart; or a mapping of these by the
            index of a layer or its kind ("full", "sliding", "latent"), 4 where it names none.
        float_tokens: an agent's KV is float while its turns begin with at most so many tokens,
            the prompt among them; the first longer one computes it again, as `kv_bits` says.
        group_size: of the quantization; unset chooses 64, else 32, else float per layer.
        max_batch: turns that run at once.
        memory_budget: bytes of KV and work space in memory, or "8GB"; unset is half of what
            the device has left once the model is loaded.
        context: tokens an agent may remember; lowers the model's own limit.
        dtype: "auto" computes in the weights' dtype, in float32 on the CPU.
        attention: "auto", "packed" or "dequantize" (`kvactors.core.attention`).
        reproducible: fix chunk ends, paths and extents so that a run repeats bit for bit.
        template_kwargs: passed to the chat template.
        progress: called on the GPU thread as progress(agent_id, done, total) in prefills.
        model_name: name of the model in messages and, for a callable, in its identity.
        max_disk: bytes of KV on disk before the least recently used is evicted.
        encryption_key: 32 bytes, or a callable that returns them: what is stored is encrypted.
        target_latency: seconds between two tokens of an agent while others prefill; while nobody
            streams, a prompt that takes under a second goes first.
        eviction: who leaves memory first: "lru", "worth" (size and age against what bringing
            it back costs), or a callable (`kvactors.core.eviction`).
        isolation: "shared" lets agents with the same system prompt hold its KV once;
            "strict" shares nothing between agents that were not forked.
        prompt_lane: how many prompts may wait for an agent, and what becomes of one more.
        max_waiting: turns that may wait for room; one more fails with AdmissionFull.
        max_unsaved: bytes, or "1GB", that may wait for a slow or failing disk before turns are
            refused with SaveQueueFull.
        deterministic: one thread runs everything, in an order that `seed` draws, in virtual
            time, reproducibly (`kvactors.actors.deterministic`); use it from one thread.
        watchdog: seconds that a step may take before `health()` and the log say that it hangs.
        journal: a new file for what behaviours are told, think and send (`kvactors.actors.replay`).
        log_text: let lines of the log at level DEBUG say what agents are told and answer; without
            it the log has ids and numbers.

    Raises InvalidConfig at construction; ModelError and StorageError from `start`.
    """

    def __init__(
        self,
        model: "str | Path | Callable[[], Any]" = "default",
        store: "str | Path | bool | None" = None,
        *,
        kv_bits: KVBits = 4,
        float_tokens: int = 0,
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
        eviction: str | EvictionPolicy = "lru",
        isolation: str = "shared",
        prompt_lane: LanePolicy = DEFAULT_LANE,
        journal: str | Path | None = None,
        max_waiting: int = 100_000,
        watchdog: float = 60.0,
        max_unsaved: int | str = MAX_UNSAVED,
        deterministic: bool = False,
        seed: int = 0,
        log_text: bool = False,
    ) -> None:
        check_parameters(
            model,
            max_batch=max_batch,
            target_latency=target_latency,
            progress=progress,
            max_waiting=max_waiting,
        )
        check_storage(store, max_disk, encryption_key)
        super().__init__(isolated=check_isolation(isolation), prompt_lane=prompt_lane)
        stored = store is not False
        unnamed = store is None or isinstance(store, bool)
        path = default_store() if unnamed else Path(str(store)).expanduser()
        opener = partial(
            Store,
            path,
            max_disk=max_disk,
            encryption_key=encryption_key,
            share_segments=isolation != "strict",
        )
        self._open_store = opener if stored else None
        self._store_path = path if stored else None
        self._on_progress = progress
        self._journal = journal
        self._crew.outstanding.max_unsaved = parse_bytes("max_unsaved", max_unsaved)
        self._crew.watchdog = check_seconds("watchdog", watchdog)
        options = ModelOptions(
            kv_bits=kv_bits,
            float_tokens=float_tokens,
            group_size=group_size,
            context=context,
            dtype=dtype,
            attention=attention,
            reproducible=reproducible or deterministic,
            template_kwargs=template_kwargs,
            name=callable_name(model) if model_name is None else model_name,
        )
        self._launch = Launch(
            model,
            options,
            max_batch=max_batch,
            memory_budget=parse_budget(memory_budget),
            target_latency=target_latency,
            stored=stored,
            eviction=check_eviction(eviction),
            max_waiting=max_waiting,
            clock=CountingClock() if deterministic else time.perf_counter,
        )
        self._crew.seed = seed if deterministic else None
        self._crew.log_text = log_text
        self._life = threading.RLock()

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
                if self._journal is not None:
                    self._stage.journal = Journal(self._journal)
            except BaseException:
                self._state = "stopped"
                self._crew.stop(())
                raise
            self._state = "running"
            _running.add(self)
            self._begin_telemetry()
            self._open_monitor(self._store_path)

    def stop(self, timeout: float | None = None) -> None:
        """Finish running and queued turns and pending saves, then end every thread.

        After `timeout` seconds what still runs is cancelled. Idempotent. Raises BlockingCall
        inside an actor or a callback.
        """
        self._stop(timeout, cancel=False)

    def _stop(self, timeout: float | None, *, cancel: bool) -> None:
        check_outside_of_actors()
        with self._life:
            if self._state != "running":
                self._state = "stopped"
                return
            deadline = None if timeout is None else time.monotonic() + timeout
            self._crew.outstanding.refuse(SystemStopped("the system is stopped"))
            self._stage.close()
            try:
                self._wait_for_turns(timeout, cancel)
            finally:
                with self._lock:
                    self._state = "stopped"
                    agents = [agent._actor.actor_ref for agent in self._agents.values()]
                self._close_monitor()
                left = None if deadline is None else max(1.0, deadline - time.monotonic())
                self._crew.stop(agents, left)
                if self._stage.journal is not None:
                    self._stage.journal.close()
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

    # -- what is known of it -----------------------------------------------------------

    def stats(self) -> dict[str, int]:
        """Counts of agents, tokens and bytes: active, hot, warm and cold, and of the engine's work.

        Waits for the step, and for the group of saves, that run. The first call lists the
        store. Raises SystemStopped, EngineDied.
        """
        self._require_running()
        engine, in_memory = self._crew.ask(self._crew.gpu, ReadStats())
        return {
            "agents": len(self._agents),
            "outstanding_turns": len(self._crew.outstanding.turns()),
            **engine,
            **self._stored(in_memory),
        }

    def _stored(self, in_memory: frozenset[str]) -> dict[str, int]:
        """What the store holds; without one, every agent that is not in memory is cold."""
        if self._crew.persistence is None:
            with self._lock:
                agents = list(self._agents.values())
            known = {agent.agent_id for agent in agents if agent._actor.transcript.turns}
            return asdict(StoreCounts(cold_agents=len(known - in_memory)))
        message = CountStored(self.info.fingerprint, in_memory)
        found: dict[str, int] = self._crew.ask(self._crew.persistence, message)
        return found

    def wait_idle(self, timeout: float | None = None) -> bool:
        """Wait until no turn or message runs or waits, no `later` is due, and every save is on
        disk. Messages of `every` count only while they are handled.

        Returns False if `timeout` seconds pass first.
        """
        return self._crew.outstanding.wait(timeout)

    @property
    def chat(self) -> ChatFormat:
        """Tokenizer and chat template of the model."""
        return self.info.chat

    @property
    def spec(self) -> ModelCacheSpec:
        """Cache spec of the model."""
        return self.info.spec


def _abandon_all() -> None:
    for system in list(_running):
        system._abandon()
    _running.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)


@atexit.register
def _stop_leftovers() -> None:
    """Systems that nobody stopped: cancel their turns, save what is finished."""
    for system in list(_running):
        system._stop(10.0, cancel=True)
