"""What an agent's own code may do within a step of the file: the context of its behaviour.

What it asks are parts of the step, performed and recorded one by one, as steps of the file are. The
runner's thread.
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from kvactors.actors.behaviours.replay import error_of
from kvactors.actors.runtime.futures import ReplyFuture, resolved
from kvactors.actors.scenarios.journal.file import Record
from kvactors.actors.scenarios.journal.records import Failure, Turn
from kvactors.actors.scenarios.running.lanes import Lane
from kvactors.actors.scenarios.running.steps import Call, Kind, Step
from kvactors.actors.turns.checks import check_turn
from kvactors.core.errors import BlockingCall, InvalidInput
from kvactors.core.schedule.sampling import Sampling
from kvactors.core.text import check_text

__all__ = ["Answer", "Awaited", "Scene"]

TOLD = "{{ text }}"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a behaviour gets of a turn: as of a Reply, what a journal has of it."""

    text: str
    finish_reason: str
    scores: Mapping[str, float] | None


class Awaited(ReplyFuture[Any]):
    """Of a part of a step. Who blocked for it would block who settles it."""

    def get(self, *, timeout: float | None = None) -> Any:
        """The value, or its error raised. Raises BlockingCall where it is not there."""
        if not self.done:
            raise BlockingCall("in a scenario nothing blocks: `await` it in an `async def`")
        return super().get(timeout=timeout)

    def __await__(self) -> Generator[Any, Any, Any]:
        if not self.done:
            yield self
        return self.get()


class Scene:
    """The context of the behaviour of a `lane`, with the methods that `AgentBehaviour` calls;
    `submit` lets a part be performed in a lane."""

    reentrant = False

    def __init__(self, lane: Lane, submit: Callable[[Lane, Step], object]) -> None:
        self.agent = SimpleNamespace(agent_id=lane.member.name)
        self._lane = lane
        self._submit = submit
        self._step: Step | None = None
        self._lent: Mapping[str, Lane] = {}
        self._parts = 0
        self._open: dict[int, Awaited] = {}

    @property
    def open(self) -> bool:
        """Whether parts are under way."""
        return bool(self._open)

    def enter(self, step: Step | None, lent: Mapping[str, Lane]) -> None:
        """From now on it acts in a `step`, with the agents that are `lent` to it; in none."""
        self._step, self._lent, self._parts = step, lent, 0

    def settle(self, part: int, record: Record) -> None:
        """A `part` has ended with a `record`."""
        future = self._open.pop(part)
        if isinstance(record, Failure):
            future.reject(error_of(record.error, record.text))
        elif isinstance(record, Turn):
            future.resolve(Answer(record.answer, record.finish, record.scores))
        else:
            future.resolve(None)

    # -- what a behaviour calls --------------------------------------------------------

    def think(
        self,
        prompt: Any,
        choices: tuple[str, ...],
        sampling: Sampling | None,
        timeout: float | None,
        options: Mapping[str, Any],
    ) -> ReplyFuture[Any]:
        """A turn of its own agent, of a `prompt`, with `choices` and a `sampling` if given; there
        is no `timeout`, nor other `options`. Raises InvalidInput."""
        check_turn(sampling, None)
        if options or timeout is not None:
            raise InvalidInput(f"a turn of a scenario has no {', '.join(options) or 'timeout'}")
        own = () if sampling is None else sampling.choices
        return self._ask(self._lane, Call(_text(prompt), choices or own, sampling=sampling))

    def ask(self, to: Any, message: Any, timeout: float | None) -> ReplyFuture[Any]:
        """A turn of another agent, with a text as its `message` `to` it; there is no `timeout`.
        Raises InvalidInput."""
        if timeout is not None:
            raise InvalidInput("a turn of a scenario has no timeout")
        return self._ask(self._other(to), Call(_text(message)))

    def observe(self, text: Any, role: str) -> ReplyFuture[Any]:
        """Its own agent hears a text."""
        if role != "user":
            raise InvalidInput(f"what is observed in a scenario has no role {role!r}")
        return self._tell(self._lane, _text(text), None)

    def send(self, to: Any, message: Any) -> ReplyFuture[Any]:
        """Another agent hears a text."""
        lane, text = self._other(to), _text(message)
        sent = self._tell(lane, text, TOLD)
        said = SimpleNamespace(speaker=self.agent.agent_id, text=text, step=self._now().number)
        lane.unread.append(said)
        return sent

    def broadcast(self, message: Any, to: Iterable[Any] | None) -> ReplyFuture[None]:
        """Several hear a text, or all whom it may ask."""
        for one in list(self._lent if to is None else to):
            self.send(one, message)
        return resolved()

    def _outside(self, *_: Any, **__: Any) -> Any:
        raise InvalidInput(
            "in a scenario a behaviour thinks, observes, asks, sends and broadcasts; all else, and "
            "when it has a step, is of the file"
        )

    rewind = subscribe = unsubscribe = publish = watch = spawn = stop = _outside
    later = every = run_blocking = _outside

    def _ask(self, lane: Lane, call: Call) -> ReplyFuture[Any]:
        asker = () if lane is self._lane else (self.agent.agent_id,)
        return self._part(lane, "choose" if call.choices else "ask", call, None, asker)

    def _tell(self, lane: Lane, text: str, form: str | None) -> ReplyFuture[Any]:
        return self._part(lane, "hear", Call(text), form)

    def _part(
        self,
        lane: Lane,
        kind: Kind,
        call: Call,
        form: str | None,
        listeners: tuple[str, ...] = (),
    ) -> ReplyFuture[Any]:
        now = self._now()
        self._parts += 1
        where = (now.phase, now.round, now.branch)
        part = Step(now.number, kind, lane.name, lane.member.name, *where, part=self._parts)
        part.source = Step(now.number, "tell", now.lane, now.agent, *where, now.words, form=form)
        part.call, part.listeners = call, listeners
        self._open[part.part] = future = Awaited()
        self._submit(lane, part)
        return future

    def _now(self) -> Step:
        if self._step is None:
            raise InvalidInput("a scenario's behaviour acts while it has a step, and not later")
        return self._step

    def _other(self, to: Any) -> Lane:
        name, me = getattr(to, "agent_id", to), self.agent.agent_id
        if name not in self._lent:
            known = ", ".join(self._lent) or "nobody"
            raise InvalidInput(f"{me} may ask {known}, not {name!r}: the file's `asks` says whom")
        return self._lent[name]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"agents of a scenario are told text, not {value!r:.80}")
    return check_text("what an agent is told", value)
