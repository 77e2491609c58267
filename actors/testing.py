"""Test doubles for a system of agents: a model, a disk and a clock that do as a test says.

    model, timer = FaultyModel(), VirtualTimer()
    system = AgentSystem(model, store)
    use_disk(system, FailingFiles(name="fsync"))
    use_timer(system, timer)
    with system:
        ...
        model.arm(step=3, error=RuntimeError("on purpose"))
        timer.let_pass(60)

A PuppetModel says what it is told, so that tool loops and long answers need no real weights:

    puppet = PuppetModel(["Let me see.", "It is four."])
    system = AgentSystem(puppet)
    use_puppet(system, puppet)

What fails is what a user sees fail: turns, futures and messages behave as they do on a broken
device, a full disk, or a day later. The kinds of disk nest: each wraps another one.

`use_store` and `use_actors` are for tests of kvactors itself: subclasses of its store and of its
actors that hold, count or break what passes through them.
"""

import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any

from kvactors.actors.agents.actor import AgentActor
from kvactors.actors.runtime.deterministic import VirtualTimer
from kvactors.actors.runtime.dispatcher import send
from kvactors.actors.system.lifecycle import Lifecycle
from kvactors.actors.system.system import AgentSystem
from kvactors.actors.turns.messages_gpu import Step
from kvactors.actors.workers.gpu import GpuActor
from kvactors.actors.workers.persistence import PersistenceActor
from kvactors.core.conversation.chat_format import ChatFormat
from kvactors.core.errors import InvalidConfig, TurnFailed
from kvactors.core.model.options import DEFAULT_MODEL
from kvactors.core.schedule.events import Aborted
from kvactors.persistence.files.atomic import Files
from kvactors.persistence.store.store import Store
from kvactors.persistence.testing.doubles import (
    CountingFiles,
    FailingFiles,
    HoldingFiles,
    KillAt,
    LyingFiles,
    PowerLossFiles,
)

__all__ = [
    "CountingFiles",
    "FailingFiles",
    "FaultyModel",
    "HoldingFiles",
    "KillAt",
    "LyingFiles",
    "PowerLossFiles",
    "PuppetModel",
    "VirtualTimer",
    "use_actors",
    "use_disk",
    "use_puppet",
    "use_store",
    "use_timer",
]


class FaultyModel:
    """For `AgentSystem(model=...)`: small, random by `seed`, exact in any order of sums, and
    well until told otherwise.

    Loads MLX on the GPU thread only. Any thread may tell it, once the system has started; a
    model that is loaded again is well.
    """

    name = "faulty-model"
    _context = 8192

    def __init__(self, *, seed: int = 1) -> None:
        self._seed = seed
        self._model: Any = None

    def __call__(self) -> tuple[Any, Any]:
        """A new copy of the same model, and its tokenizer: characters are tokens."""
        from kvactors.core.testing.models import Faulty, snap_to_grid, tiny_model

        tokenizer = self._make_tokenizer()
        size = max(tokenizer.get_vocab().values()) + 1
        tiny = tiny_model(seed=self._seed, vocab_size=size, max_position_embeddings=self._context)
        self._model = Faulty(snap_to_grid(tiny))
        return self._model, tokenizer

    def arm(
        self,
        *,
        poison: int | None = None,
        step: int | None = None,
        error: BaseException | None = None,
        hold: threading.Event | None = None,
        lie: float = 0.0,
    ) -> None:
        """Raise `error` whenever the token `poison` is fed, or once, in the `step`-th forward
        from now (from 0); hold every forward until `hold` is set; add `lie` to all logits.
        Takes the place of what it was told before."""
        self._model.arm(poison=poison, step=step, error=error, hold=hold, lie=lie)

    def hold(self) -> threading.Event:
        """Hold every forward until the event returned is set; `reached` tells of the first."""
        gate = threading.Event()
        self.arm(hold=gate)
        return gate

    @property
    def reached(self) -> threading.Event:
        """Set when a forward is being held."""
        reached: threading.Event = self._model.reached
        return reached

    def _make_tokenizer(self) -> Any:
        from kvactors.core.testing.models import PlainTokenizer

        return PlainTokenizer()


class PuppetModel(FaultyModel):
    """For `AgentSystem(model=...)` and `use_puppet`: says what it is told, token by token.

    `script` has its answers, one for each turn in the order in which they begin; or it makes an
    answer of the conversation so far, as the model reads it, on the GPU thread: it must not wait.
    An answer that the script or the tokenizer does not have fails its turn. `tokenizer` makes the
    tokenizer; the default model's, if it is None. Its weights, by `seed`, and all else are those of
    a FaultyModel.
    """

    name = "puppet-model"
    # What coding agents send goes far beyond a small model's context.
    _context = 131_072

    def __init__(
        self,
        script: Callable[[str], str] | Iterable[str],
        *,
        tokenizer: Callable[[], Any] | None = None,
        seed: int = 1,
    ) -> None:
        super().__init__(seed=seed)
        self._tokenizer = tokenizer or _default_tokenizer
        answers = iter(() if callable(script) else script)
        self._script = script if callable(script) else lambda _said: next(answers)

    def answer(self, chat: ChatFormat, said: Iterable[int]) -> tuple[int, ...]:
        """The tokens of the answer to a conversation, the tokens `said`, in the form of `chat`.
        Raises TurnFailed."""
        try:
            text = self._script(chat.decode(list(said)))
        except StopIteration:
            raise TurnFailed("the puppet's script has no more answers") from None
        except Exception as error:
            raise TurnFailed(f"the puppet's script failed: {error!r}") from error
        if not isinstance(text, str):
            raise TurnFailed(f"the puppet's script says text, not {text!r:.80}")
        tokens = chat.encode_answer(text)
        spoken = chat.decode(tokens)
        if spoken != chat.answer_text(text) or not chat.end_of_turn:
            raise TurnFailed(f"the puppet's tokenizer says {spoken!r} for {text!r}, or has no end")
        return (*tokens, *chat.end_of_turn)

    def _make_tokenizer(self) -> Any:
        return self._tokenizer()


def _default_tokenizer() -> Any:
    from mlx_lm.tokenizer_utils import load

    return load(DEFAULT_MODEL)


def use_disk(system: AgentSystem, files: Files) -> None:
    """Let a system write through these. Before it starts; raises InvalidConfig."""
    lifecycle = _not_started(system, "disk")
    lifecycle.open_store = functools.partial(_opener(lifecycle), files=files)


def use_store(system: AgentSystem, kind: type[Store]) -> None:
    """Let a system keep what it keeps in a store of this class. Before it starts; raises
    InvalidConfig."""
    lifecycle = _not_started(system, "store")
    opener = _opener(lifecycle)
    lifecycle.open_store = functools.partial(kind, *opener.args, **opener.keywords)


def use_timer(system: AgentSystem, timer: VirtualTimer) -> None:
    """Let timeouts, `later`, `every`, pauses and the watchdog of a system go by this clock.
    Before it starts; raises InvalidConfig."""
    lifecycle = _not_started(system, "clock")
    if lifecycle.deterministic:
        raise InvalidConfig("deterministic systems have a clock of their own")
    lifecycle.timer = timer


def use_actors(
    system: AgentSystem,
    *,
    agent: type[AgentActor] = AgentActor,
    gpu: type[GpuActor] = GpuActor,
    persistence: type[PersistenceActor] = PersistenceActor,
) -> None:
    """Let the actors of a system be of these classes, `agent` each of its agents', `gpu` and
    `persistence` the two others: what they are told passes their `on_receive`, on their threads.
    Before it starts; raises InvalidConfig."""
    lifecycle = _not_started(system, "kind of actor")
    lifecycle.gpu_kind, lifecycle.persistence_kind = gpu, persistence
    system.parts.agents.maker.kind = agent


def use_puppet(system: AgentSystem, puppet: PuppetModel) -> None:
    """Let the agents of a system say what the script of its model, `puppet`, says. Before it
    starts, and after `use_actors`; raises InvalidConfig."""
    lifecycle = _not_started(system, "script")
    kind: Any = lifecycle.gpu_kind

    class Told(kind):  # type: ignore[misc]
        """Tells each turn what to say before it runs it."""

        def on_receive(self, message: Any) -> Any:
            request = message.request if isinstance(message, Step) else None
            if request and request.generate and not (request.choices or request.told):
                try:
                    request.told = puppet.answer(system.chat, request.tokens)
                except TurnFailed as error:
                    send(message.agent, Aborted(request.agent_id, request.serial, error))
                    return None
            return super().on_receive(message)

    lifecycle.gpu_kind = Told


def _not_started(system: AgentSystem, what: str) -> Lifecycle:
    if system.parts.lifecycle.state != "new":
        raise InvalidConfig(f"another {what} is for a system that has not started")
    return system.parts.lifecycle


def _opener(lifecycle: Lifecycle) -> "functools.partial[Store]":
    if lifecycle.open_store is None:
        raise InvalidConfig("this system has no store")
    return lifecycle.open_store
