"""Runs one journal's steps: each as soon as what it depends on is there.

An agent's steps are begun in the order of the file; two agents wait for each other only where one
hears or quotes the other. A step has ended when its record is in the journal, and only then does
another one see it: whatever is lost by a kill, nothing that is kept was told of it.

First the runner goes through what a journal already has (`replay`), without any model; then it goes
on with the agents of a system (`go_on`), if it is given them. One thread.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Protocol

from kvactors.actors.scenarios.files.cast import Member
from kvactors.actors.scenarios.files.problems import InvalidScenario
from kvactors.actors.scenarios.files.templates import template
from kvactors.actors.scenarios.journal.file import Record
from kvactors.actors.scenarios.journal.records import Event, Failure
from kvactors.actors.scenarios.running.answers import Answers
from kvactors.actors.scenarios.running.calls import make_call
from kvactors.actors.scenarios.running.outcomes import Outcome, diverged, record_of, same
from kvactors.actors.scenarios.running.script import Script
from kvactors.actors.scenarios.running.steps import Call, NotYet, Step
from kvactors.actors.scenarios.running.walk import Walk

__all__ = ["Agents", "Lane", "Runner"]

# Steps that may be laid out and not have ended.
MOST_OPEN = 50_000
WHOLE = ("swap", "restart", "stop", "end")


@dataclass(eq=False, slots=True)
class Lane:
    """One agent in one branch: its steps in their order. `memory` counts the exchanges that it
    remembers by the journal."""

    name: str
    member: Member
    open: bool
    asleep: bool = False  # its next step waits for steps of others
    waiting: deque[Step] = field(default_factory=deque)
    flying: deque[Step] = field(default_factory=deque)
    unread: list[SimpleNamespace] = field(default_factory=list)
    memory: int = 0
    origin: str | None = None  # the lane that it was forked from

    @property
    def awake(self) -> bool:
        """Whether it may have a step that can begin."""
        return self.open and not self.asleep and bool(self.waiting)


class Agents(Protocol):
    """Who performs steps. Outcomes come by themselves, to `Runner.take`."""

    def perform(self, lane: Lane | None, step: Step) -> None:
        """Begin a step; its outcome comes later."""

    def resume(self, lanes: Iterable[Lane]) -> None:
        """Bring the agents of these lanes to where the journal has them."""


class Runner:
    """One run of a `script`. `keep` is given each record, in the order in which it counts. With
    `lockstep` no round begins before all of the last one has ended. `ended` is "end", or "restart"
    where another process is to go on; `steps_ended` counts those that have a record."""

    def __init__(
        self, script: Script, keep: Callable[[Record], None], *, lockstep: bool = False
    ) -> None:
        self.script = script
        self.ended = ""
        self.steps_ended = 0
        self.lanes: dict[str, Lane] = {}
        self._failed = ""
        self._keep = keep
        self._lockstep = lockstep
        self._round: tuple[str, int, str] | None = None
        answers = Answers()
        self._answers = answers
        self._plan = Walk(script.words, script.cast, answers)
        self._walk = iter(self._plan.steps(script.variables))
        self._held: Step | None = None  # of the whole, waiting until nothing is open
        self._walking = True
        self._ready: deque[Lane] = deque()
        self._open = 0
        self._pending: dict[int, Step] = {}
        self._outcomes: dict[int, Outcome] = {}
        self._agents: Agents | None = None

    @property
    def flying(self) -> int:
        """Steps that are being performed."""
        return len(self._pending)

    # -- going on ----------------------------------------------------------------------

    def replay(self, records: Iterable[Record]) -> None:
        """Go through what is recorded. Raises InvalidScenario where the scenario says otherwise."""
        self._advance()
        for record in records:
            if isinstance(record, Event) and record.kind == "process":
                self._keep(record)
                self._go_on()
                continue
            step = self._pending.pop(record.step, None)
            if step is None or not same(step, record):
                raise InvalidScenario(diverged(step, record))
            self._finish(step, record)
            self._advance()

    def go_on(self, agents: Agents) -> None:
        """Go on with these agents from where it is."""
        self._agents = agents
        agents.resume(self.lanes.values())
        pending = sorted(self._pending.items())
        for _, step in pending:
            agents.perform(self.lanes.get(step.lane), step)
        self._go_on()

    def _go_on(self) -> None:
        """After a restart, in another process."""
        if self.ended == "restart":
            self.ended = ""
        self._advance()

    def take(self, step: Step, outcome: Outcome) -> None:
        """The `outcome` of a step that was performed."""
        lane = self.lanes.get(step.lane)
        self._outcomes[step.number] = outcome
        while lane is not None and lane.flying and lane.flying[0].number in self._outcomes:
            self._settle(lane.flying[0])
        if lane is None:
            self._settle(step)
        self._advance()

    def _settle(self, step: Step) -> None:
        self._pending.pop(step.number)
        lane = self.lanes.get(step.lane)
        outcome = self._outcomes.pop(step.number)
        self._finish(step, record_of(step, outcome, lane.memory if lane else 0))

    def _finish(self, step: Step, record: Record) -> None:
        self._keep(record)
        self.steps_ended += 1
        lane = self.lanes.get(step.lane)
        if lane is not None:
            lane.flying.remove(step)
            lane.memory = getattr(record, "memory", lane.memory)
            self._ready.append(lane)
        if step.kind == "fork" and lane is not None:
            child = self._lane(step.detail, step.child)
            child.memory, child.open = lane.memory, True
            self._ready.append(child)
        if isinstance(record, Event) and record.kind in ("end", "restart"):
            self.ended = record.kind
        if isinstance(record, Failure) and self.script.words.on_failure == "stop":
            self._give_up(f"step {record.step} failed")
        self._end(step, getattr(record, "answer", None))

    def _give_up(self, reason: str) -> None:
        """Begin no step any more, but for the run's end."""
        if not self._failed:
            self._failed = reason
            self._walk, self._walking = self._plan.ending(reason), True
            if self._held is not None:
                self._end(self._held, None)
                self._held = None
            for lane in self.lanes.values():
                while lane.waiting:
                    self._end(lane.waiting.popleft(), None)

    def _end(self, step: Step, text: str | None) -> None:
        self._open -= 1
        step.end(text)

    # -- laying out and beginning ------------------------------------------------------

    def _advance(self) -> None:
        """Begin all that can begin."""
        while not self.ended and (self._lay_out() | self._begin_ready()):
            pass

    def _lay_out(self) -> bool:
        moved = False
        while self._walking and self._open < MOST_OPEN and self._held is None:
            step = next(self._walk, None)
            if step is None:
                self._walking = False
                break
            moved = True
            if isinstance(step, NotYet):
                self._walking = False
                self._when_ended(step.steps, self._walk_on)
                continue
            self._open += 1
            if step.kind in WHOLE or self._begins_round(step):
                self._held = step
            else:
                self._queue(step)
        if self._held is not None and self._open == 1:
            step, self._held, moved = self._held, None, True
            if step.kind in WHOLE:
                self._submit(None, step)
            else:
                self._queue(step)
        return moved

    def _begins_round(self, step: Step) -> bool:
        """Whether a step has to wait for those of the round before, in lockstep."""
        here = step.phase, step.round, step.branch.path
        before, self._round = self._round, here
        return self._lockstep and before is not None and before != here

    def _walk_on(self) -> None:
        self._walking = True

    def _wake(self, lane: Lane) -> None:
        lane.asleep = False
        self._ready.append(lane)

    def _queue(self, step: Step) -> None:
        lane = self._lane(step.lane, step.agent)
        if step.kind == "fork":
            child = self._lane(step.detail, step.child)
            child.open, child.origin = False, step.lane
        lane.waiting.append(step)
        self._ready.append(lane)

    def _lane(self, name: str, agent: str) -> Lane:
        if name not in self.lanes:
            self.lanes[name] = Lane(name, self.script.cast.members[agent], open=True)
        return self.lanes[name]

    def _begin_ready(self) -> bool:
        moved = bool(self._ready)
        while self._ready:
            lane = self._ready.popleft()
            while (
                lane.open
                and not lane.asleep
                and lane.waiting
                and self._begin(lane, lane.waiting[0])
            ):
                lane.waiting.popleft()
        return moved

    def _begin(self, lane: Lane, step: Step) -> bool:
        """Begin a lane's next step, or skip it; False if it has to wait."""
        if lane.flying and (lane.flying[-1].kind == "probe" or step.kind in ("fork", "probe")):
            return False
        if step.kind == "fork":
            return self._submit(lane, step)
        if step.kind == "hear":
            return self._hear(lane, step)
        if step.asks and any(flying.asks for flying in lane.flying):
            return False
        if step.if_heard and not lane.unread:
            return self._skip(step)
        try:
            step.call = make_call(self.script, self._answers, lane, step)
        except NotYet as not_yet:
            lane.asleep = True
            self._when_ended(not_yet.steps, lambda: self._wake(lane))
            return False
        except Exception as error:  # Whatever a template may do.
            step.call = Call("")
            step.failed = type(error).__name__, str(error)
            return self._submit(lane, step)
        if step.call is None:
            return self._skip(step)
        step.heard = tuple(said.step for said in lane.unread)
        if step.kind != "probe":
            lane.unread = []
        if step.kind == "tell":
            self._end(step, step.call.text)
            return True
        return self._submit(lane, step)

    def _skip(self, step: Step) -> bool:
        self._end(step, None)
        return True

    def _hear(self, lane: Lane, step: Step) -> bool:
        source = step.source
        assert source is not None
        if not source.ended:
            lane.asleep = True
            source.waiting.append(lambda: self._wake(lane))
            return False
        if source.text is None:
            return self._skip(step)
        lane.unread.append(
            SimpleNamespace(speaker=source.agent, text=source.text, step=source.number)
        )
        step.call = Call(self._as_heard(source))
        return self._submit(lane, step)

    def _as_heard(self, source: Step) -> str:
        if source.form is None or source.text is None:
            return source.text or ""
        speaker = self.script.cast.members[source.agent].view
        names = {"speaker": speaker, "text": source.text, "phase": source.phase}
        return str(
            template(source.form).render(
                **{**source.branch.variables, **names, "round": source.round}
            )
        )

    def _submit(self, lane: Lane | None, step: Step) -> bool:
        """Let a step be performed, or, while there are records, be found in them."""
        self._pending[step.number] = step
        if lane is not None:
            lane.flying.append(step)
        if self._agents is not None:
            self._agents.perform(lane, step)
        return True

    def _when_ended(self, steps: Iterable[Step], then: Callable[[], None]) -> None:
        """Call back once all of these have ended."""
        left = [step for step in steps if not step.ended]
        count = len(left)

        def one_less() -> None:
            nonlocal count
            count -= 1
            if count == 0:
                then()

        for step in left:
            step.waiting.append(one_less)
        if not left:
            then()
