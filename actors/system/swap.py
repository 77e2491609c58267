"""AgentSystem.swap_model: another model, the same agents.

Agents pause: turns that run end, the next ones wait in their mailboxes. What they said, and the
KV of it, is on disk before the model goes; it is gone before the other one is loaded. Then each
agent brings its transcript under the new tokenizer and goes on.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

from pykka import Timeout

from kvactors.actors.agents.host import AgentHost
from kvactors.actors.runtime.blocking import check_may_block
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.actors.system.lifecycle import Lifecycle
from kvactors.actors.system.parameters import callable_name, check_model
from kvactors.actors.system.registry import AgentRegistry
from kvactors.actors.turns.checks import check_known, check_turn
from kvactors.actors.turns.messages_gpu import SwapModel, Swapped
from kvactors.actors.turns.messages_store import WithStore
from kvactors.core.cache.kv_bits import KVBits
from kvactors.core.engine.launch import Launch
from kvactors.core.errors import EngineDied, SwapFailed, SystemStopped
from kvactors.core.model.info import ModelInfo

__all__ = ["ModelChanges", "ModelSwap"]

logger = logging.getLogger(__name__)

# Seconds between two looks whether the system still runs.
_LOOK = 0.5


class ModelChanges(TypedDict, total=False):
    """Parameters of AgentSystem that a swap may change; those left out stay as they are."""

    kv_bits: KVBits
    float_tokens: int
    group_size: int | None
    context: int | None
    dtype: str
    attention: str
    reproducible: bool
    template_kwargs: dict[str, Any] | None


class ModelSwap:
    """Exchanges the model of one system, one at a time. `launch` made the one that is loaded.
    `lifecycle` has the actors, `host` is told of the new one, `agents` remember under it."""

    def __init__(
        self, launch: Launch, lifecycle: Lifecycle, host: AgentHost, agents: AgentRegistry
    ) -> None:
        self.launch = launch
        self._lifecycle = lifecycle
        self._host = host
        self._agents = agents
        self._one_swap = threading.Lock()

    def swap_model(
        self,
        model: "str | Path | Callable[[], Any]",
        *,
        timeout: float | None = None,
        model_name: str | None = None,
        **changes: Unpack[ModelChanges],
    ) -> None:
        """Go on with another model; returns when it is loaded and every agent remembers under it.
        The agents, and what was asked of them, stay.

        Turns that run, streams included, end under the old model; the next ones wait and run under
        the new one. The old model's KV stays on disk under its fingerprint, and its memory is free
        before the new one is loaded. The next turn of an agent is cold, or warm if this model had
        it before; where the tokenizer is another one, its turns are tokenized again from their text
        (`reply.usage.retokenized_tokens`). An agent that the new chat template cannot render gets
        TemplateError for its turns until the next swap.

        `timeout`: seconds that running turns have to end. `model_name`: as AgentSystem has it.
        `changes`: kv_bits, float_tokens, group_size, context, dtype, attention, reproducible,
        template_kwargs, as AgentSystem has them; what is not given stays. The memory budget is
        found anew if it was not given; a draft model of other tokens drafts no more; the counts of
        `stats()` begin again.

        Raises InvalidInput, SystemStopped, EngineDied, StorageError, and SwapFailed: then the old
        model goes on (loaded again, agents are warm), unless that failed too, which the message
        says; no turn is accepted then, and what was said is stored. Any thread but an actor's
        (BlockingCall).
        """
        check_may_block()
        self._lifecycle.require_running()
        check_model(model)
        check_turn(None, timeout)
        check_known("swap_model", changes, ModelChanges.__annotations__)
        name = callable_name(model) if model_name is None else model_name
        # Before anything is paused: what no model can have is refused here.
        replace(self.launch.options, name=name, **changes)
        result: ReplyFuture[None] = ReplyFuture()

        def run() -> None:
            try:
                with self._one_swap:
                    options = replace(self.launch.options, name=name, **changes)
                    self._swap(
                        replace(self.launch, source=model, options=options, swapped=True), timeout
                    )
            except BaseException as error:
                result.reject(error)
            else:
                result.resolve(None)

        if self._lifecycle.deterministic:
            run()  # Deterministic mode has one thread, which goes on while this one waits.
        else:
            # On a thread of its own: Ctrl-C ends the waiting, never a swap half done.
            threading.Thread(target=run, name="kvactors-swap", daemon=True).start()
        result.get()

    def _swap(self, launch: Launch, timeout: float | None) -> None:
        lifecycle, model = self._lifecycle, self._host.info
        try:
            self._pause(timeout, model.name)
            if lifecycle.persistence is not None:
                # Answered when all saves before it are written.
                lifecycle.ask(lifecycle.persistence, WithStore(lambda store: None))
            swapped = self._exchange(launch, model)
            _warn_of_template(model, swapped.model)
            model = swapped.model
        finally:
            # Every agent remembers under this model and takes turns.
            for adopted in self._agents.resume(model):
                adopted.get()
        if swapped.error is not None:
            raise SwapFailed(
                f"{_name(launch)} cannot be loaded ({_said(swapped.error)}): the system goes on "
                f"with {model.name}"
            ) from swapped.error
        self.launch = launch

    def _pause(self, timeout: float | None, model: str) -> None:
        """Let running turns end, and no other begin. Raises SwapFailed when time is up, and
        why the system takes no turns any more, if it does not."""
        deadline = None if timeout is None else time.monotonic() + timeout
        pauses = self._agents.pause()
        for done in pauses:
            while not done.done:
                refusal = self._lifecycle.outstanding.refusal
                if refusal is not None:
                    raise refusal.with_traceback(None)
                left = _LOOK if deadline is None else min(_LOOK, deadline - time.monotonic())
                if left <= 0:
                    running = sum(not pause.done for pause in pauses)
                    raise SwapFailed(
                        f"{running} turns still ran after {timeout:g} s: the system goes on with "
                        f"{model}"
                    )
                with suppress(Timeout):
                    done.get(timeout=left)

    def _exchange(self, launch: Launch, model: ModelInfo) -> Swapped:
        lifecycle = self._lifecycle
        try:
            swapped: Swapped = lifecycle.ask(lifecycle.gpu, SwapModel(launch, self.launch))
        except (EngineDied, SystemStopped):
            raise
        except Exception as error:
            raise SwapFailed(
                f"{_name(launch)} cannot be loaded, nor {model.name} again ({_said(error)}): no "
                "turn is accepted any more, and what was said is kept; stop this system"
            ) from error
        return swapped


def _warn_of_template(old: ModelInfo, new: ModelInfo) -> None:
    """Turns are rendered again for another tokenizer only."""
    if old.tokenizer_id == new.tokenizer_id and not new.chat.writes_like(old.chat):
        logger.warning(
            "%s has the tokenizer of %s and another chat template: what agents remember keeps the "
            "old one's form",
            new.name,
            old.name,
        )


def _name(launch: Launch) -> str:
    return launch.options.name or str(launch.source)


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
