"""AgentSystem: starts the actors, wires them, and ends them in order."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from kvactors.actors.agents.handle import Agent, agent_named
from kvactors.actors.runtime.deterministic import CountingClock
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.actors.runtime.mailbox import DEFAULT_LANE, LanePolicy
from kvactors.actors.runtime.supervision import DeadLetter, Terminated
from kvactors.actors.system.backups import StoreBackups
from kvactors.actors.system.checks import check_system
from kvactors.actors.system.exchange import AgentExchange
from kvactors.actors.system.lifecycle import Lifecycle
from kvactors.actors.system.parameters import (
    callable_name,
    check_flags,
    check_interval,
    check_isolation,
    check_journal,
    check_lane,
    check_latency,
    check_model,
    check_progress,
    check_seconds,
    check_seed,
    check_speculation,
    check_storage,
    check_turns,
    default_store,
    parse_bytes,
    parse_limit,
    store_path,
)
from kvactors.actors.system.parts import Parts, offered
from kvactors.actors.system.registry import AgentRegistry
from kvactors.actors.system.residency import Residency
from kvactors.actors.system.roster import AgentRoster
from kvactors.actors.system.swap import ModelSwap
from kvactors.actors.system.watching import Watching
from kvactors.actors.turns.checks import check_topic, stays_here
from kvactors.actors.turns.unsaved import MAX_UNSAVED
from kvactors.actors.workers.gpu import OnProgress
from kvactors.actors.workers.switching import SWITCH_INTERVAL
from kvactors.core import blas
from kvactors.core.cache.kv_bits import KVBits
from kvactors.core.cache.spec import ModelCacheSpec
from kvactors.core.conversation.chat_format import ChatFormat
from kvactors.core.engine.launch import Launch
from kvactors.core.model.info import ModelInfo
from kvactors.core.model.options import ModelOptions
from kvactors.core.schedule.eviction import EvictionPolicy, check_eviction
from kvactors.core.schedule.speculation.speculation import DraftModel
from kvactors.persistence.files.encryption import EncryptionKey
from kvactors.persistence.store.store import DEFAULT_MAX_DISK, Store

__all__ = ["AgentSystem", "default_store"]

# Before MLX, which a program may import next: it takes the BLAS that it finds.
blas.preload()


class AgentSystem:
    """Agents that own persistent KV caches, batched by one GPU actor.

    Args:
        model: "default", a directory, a hub name, or a callable that returns (model, tokenizer) and
            runs on the GPU thread; with a store it needs a name (its own, or `model_name`).
        store: a directory; None is `$KVACTORS_HOME` or `~/.kvactors`; False keeps nothing.
        kv_bits: 4, 8 or None (float); "k8v4", keys and values apart; or a mapping of these by the
            index of a layer or its kind ("full", "sliding", "latent"), 4 where it names none.
        float_tokens: an agent's KV is float while its turns begin with at most so many tokens, the
            prompt among them; the first longer one computes it again, as `kv_bits` says.
        group_size: of the quantization; unset chooses 64, else 32, else float per layer.
        max_batch: turns that run at once.
        memory_budget: bytes of KV and work space, or "8GB"; unset: half of what the model leaves.
        context: tokens an agent may remember; lowers the model's own limit.
        dtype: "auto" computes in the weights' dtype, in float32 on the CPU.
        attention: "auto", "packed" or "dequantize" (`kvactors.core.attention.attend`).
        reproducible: fix chunk ends, paths and extents so that a run repeats bit for bit.
        template_kwargs: passed to the chat template; what has a JSON form.
        progress: called on the GPU thread as progress(agent_id, done, total) in prefills.
        model_name: name of the model in messages and, for a callable, in its identity.
        max_disk: bytes of KV on disk, or "8GB", before the least recently used is evicted.
        encryption_key: 32 bytes, or a callable that returns them: what is stored is encrypted.
        target_latency: seconds between two tokens while others prefill; None: a tenth of one, or
            five steps of who is streamed if that is less.
        speculation: "auto": steps check what was said before; a DraftModel; or "off".
        eviction: who leaves memory first: "lru", or a callable (`kvactors.core.schedule.eviction`).
        isolation: "shared": agents with the same beginning hold its KV once; or "strict".
        prompt_lane: how many prompts may wait for an agent, and what becomes of one more.
        max_waiting: turns that may wait for room; one more fails with AdmissionFull.
        max_unsaved: bytes, or "1GB", that may wait for a bad disk; then SaveQueueFull.
        deterministic: one thread runs everything, in an order that `seed` draws, in virtual time
            (`kvactors.actors.runtime.deterministic`); use it from one thread.
        watchdog: seconds a step, or an agent's answer, may take before `health()` and a log say so.
        journal: a new file of what behaviours live through (`kvactors.actors.behaviours.replay`).
        log_text: let the log, at level DEBUG, say what agents are told and answer, not ids alone.
        switch_interval: seconds after which Python's threads take turns while a step runs; None
            leaves it as the program has it.

    Raises InvalidConfig at construction; ModelError and StorageError from `start`. `parts`, what it
    is made of, is for tests and tools: nothing there is promised to stay.
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
        max_disk: int | str | None = DEFAULT_MAX_DISK,
        encryption_key: EncryptionKey | None = None,
        target_latency: float | None = None,
        speculation: str | DraftModel = "auto",
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
        switch_interval: float | None = SWITCH_INTERVAL,
    ) -> None:
        check_model(model)
        check_progress(progress)
        check_storage(store, encryption_key)
        check_flags(reproducible=reproducible, deterministic=deterministic, log_text=log_text)
        check_journal(journal)
        seed = check_seed(seed)
        isolated = check_isolation(isolation)
        path = store_path(store)
        opener = partial(
            Store,
            path or Path(),
            max_disk=parse_limit("max_disk", max_disk, least=0),
            encryption_key=encryption_key,
            share_segments=not isolated,
        )
        lifecycle = Lifecycle(
            None if path is None else opener,
            progress,
            seed=seed if deterministic else None,
            watchdog=check_seconds("watchdog", watchdog),
            max_unsaved=parse_bytes("max_unsaved", max_unsaved),
        )
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
        launch = Launch(
            model,
            options,
            max_batch=check_turns("max_batch", max_batch),
            memory_budget=parse_limit("memory_budget", memory_budget),
            target_latency=check_latency(target_latency),
            stored=path is not None,
            speculation=check_speculation(speculation, isolated=isolated),
            eviction=check_eviction(eviction),
            max_waiting=check_turns("max_waiting", max_waiting),
            clock=CountingClock() if deterministic else time.perf_counter,
            share=not isolated,
            switch_interval=check_interval(switch_interval),
        )
        self.parts = Parts(
            lifecycle,
            launch,
            isolated=isolated,
            lane=check_lane(prompt_lane),
            log_text=log_text,
            journal=journal,
            store=path,
            encryption_key=encryption_key,
        )

    def __reduce__(self) -> NoReturn:
        stays_here(self, "make one there, with a store of its own")

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
        self.parts.stop(None, cancel=error is not None)

    async def __aenter__(self) -> Self:
        await self.parts.start_async()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.parts.stop_async(cancel=error is not None)

    def start(self) -> None:
        """Open the store, load and probe the model; returns when agents can be asked."""
        self.parts.start()

    def stop(self, timeout: float | None = None) -> None:
        """Finish running and queued turns and pending saves, then end every thread. After `timeout`
        seconds what still runs is cancelled. Idempotent. Raises BlockingCall inside an actor or a
        callback."""
        self.parts.stop(timeout, cancel=False)

    # -- what one part does ------------------------------------------------------------

    agents = offered("agents", AgentRegistry.agents)
    backup = offered("backups", StoreBackups.backup)
    deactivate = offered("residency", Residency.deactivate)
    export_agent = offered("exchange", AgentExchange.export_agent)
    find = offered("agents", AgentRegistry.find)
    forget = offered("agents", AgentRegistry.forget)
    health = offered("lifecycle", Lifecycle.health)
    import_agent = offered("exchange", AgentExchange.import_agent)
    known_agents = offered("roster", AgentRoster.known_agents)
    prefetch = offered("residency", Residency.prefetch)
    spawn = offered("agents", AgentRegistry.spawn)
    stats = offered("roster", AgentRoster.stats)
    swap_model = offered("swap", ModelSwap.swap_model)
    trace = offered("watching", Watching.trace)
    wait_idle = offered("lifecycle", Lifecycle.wait_idle)

    def publish(self, topic: str, message: Any) -> ReplyFuture[None]:
        """Send to every behaviour that subscribed to a topic. Any thread."""
        check_topic(topic)
        self.parts.lifecycle.require_running()
        return self.parts.router.publish(topic, message, None)

    def watch(self, agent: str | Agent) -> ReplyFuture[Terminated]:
        """A future that resolves when an agent's behaviour ends; at once if it has none."""
        future: ReplyFuture[Terminated] = ReplyFuture()
        self.parts.router.on_end(agent_named(agent), future.resolve)
        return future

    def dead_letters(self) -> tuple[DeadLetter, ...]:
        """The latest 1,000 messages nobody handled; behaviours get them as topic "dead letters"."""
        return tuple(self.parts.router.letters)

    # -- what is known of it -----------------------------------------------------------

    def check(self) -> None:
        """Prove that nothing is leaked: blocks, rows, futures, threads. AssertionError is a bug
        of kvactors, and says what is left. Proves most when the system is idle."""
        parts, lifecycle = self.parts, self.parts.lifecycle
        lifecycle.require_running()
        ask = partial(lifecycle.ask, lifecycle.gpu)
        check_system(ask, parts.behaviours.check, lifecycle.outstanding, parts.agents.actors())

    @property
    def info(self) -> ModelInfo:
        """The loaded model: name, cache spec, fingerprint, device, memory budget."""
        return self.parts.host.info

    @property
    def chat(self) -> ChatFormat:
        """Tokenizer and chat template of the model."""
        return self.info.chat

    @property
    def spec(self) -> ModelCacheSpec:
        """Cache spec of the model."""
        return self.info.spec
