"""Runs one journal's steps: each as soon as what it depends on is there.

An agent's steps are begun in the order of the file; two agents wait for each other only where one
hears or quotes the other. A step has ended when its record is in the journal, and only then does
another one see it: whatever is lost by a kill, nothing that is kept was told of it.

First the runner goes through what a journal already has (`replay`), without any model; then it goes
on with the agents of a system (`go_on`), if it is given them. One thread.
"""

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from types import SimpleNamespace

from kvactors.actors.scenarios.files.problems import InvalidScenario
from kvactors.actors.scenarios.files.schema import ProbeWords
from kvactors.actors.scenarios.journal.file import Record
from kvactors.actors.scenarios.journal.records import Event, Failure
from kvactors.actors.scenarios.running.answers import Answers
from kvactors.actors.scenarios.running.calls import as_heard, make_call
from kvactors.actors.scenarios.running.lanes import Agents, Lane
from kvactors.actors.scenarios.running.layout import WHOLE, Layout
from kvactors.actors.scenarios.running.outcomes import Outcome, diverged, record_of, same
from kvactors.actors.scenarios.running.roles import Roles
from kvactors.actors.scenarios.running.script import Script
from kvactors.actors.scenarios.running.steps import Call, NotYet, Step, when_ended
from kvactors.actors.scenarios.running.walk import Walk

__all__ = ["Runner"]

# Steps of one lane that its agent is given at once: its line has room for 1,000.
MOST_AT_ONCE = 256


class Runner:
    """One run of a `script`. `keep` is given each record, in the order in which it counts. With
    `lockstep` no round begins before all of the last one has ended. `ended` is "end", or "restart"
    where another process is to go on; `model` is the one that was swapped in, if one was."""

    def __init__(
        self, script: Script, keep: Callable[[Record], None], *, lockstep: bool = False
    ) -> None:
        self.script = script
        self.ended = ""
        self.model: str | None = None
        self.lanes: dict[str, Lane] = {}
        self._failed = ""
        self._keep = keep
        answers = Answers()
        self._answers = answers
        walk = Walk(script.words, script.cast, answers)
        self._layout = Layout(walk, script.variables, lockstep=lockstep)
        self._ready: deque[Lane] = deque()
        self._open = 0
        self._roles = Roles(script, self._submit, self._skip)
        self._pending: dict[tuple[int, int], Step] = {}
        self._outcomes: dict[tuple[int, int], Outcome] = {}
        self._agents: Agents | None = None

    @property
    def flying(self) -> int:
        """Steps that are being performed."""
        return len(self._pending)

    # -- going on ----------------------------------------------------------------------

    def replay(self, records: Iterable[Record], *, exactly: bool = False) -> None:
        """Go through what is recorded. Raises InvalidScenario where the scenario says otherwise;
        `exactly`: of what is chosen between and what probes expect, too."""
        self._advance()
        for record in records:
            if isinstance(record, Event) and record.kind == "process":
                self._keep(record)
                self._go_on()
                continue
            step = self._pending.pop((record.step, getattr(record, "part", 0)), None)
            if step is None or not same(step, record, exactly=exactly):
                raise InvalidScenario(diverged(step, record))
            self._finish(step, record)
            self._advance()

    def go_on(self, agents: Agents) -> None:
        """Go on with these agents from where it is."""
        self._agents = agents
        agents.resume(self.lanes.values(), self.model)
        lanes = self.lanes.values()
        later = {step.key for lane in lanes for step in islice(lane.flying, MOST_AT_ONCE, None)}
        pending = sorted(self._pending.items())
        for key, step in pending:
            if key not in later:
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
        self._outcomes[step.key] = outcome
        while lane is not None and lane.flying and lane.flying[0].key in self._outcomes:
            self._settle(lane.flying[0])
        if lane is None:
            self._settle(step)

    def _settle(self, step: Step) -> None:
        self._pending.pop(step.key)
        lane = self.lanes.get(step.lane)
        outcome = self._outcomes.pop(step.key)
        self._finish(step, record_of(step, outcome, lane.memory if lane else 0))
        # After each, as a replay does: steps are numbered as they are laid out.
        self._advance()

    def _finish(self, step: Step, record: Record) -> None:
        self._keep(record)
        lane = self.lanes.get(step.lane)
        if lane is not None:
            lane.flying.remove(step)
            if self._agents is not None and len(lane.flying) >= MOST_AT_ONCE:
                self._agents.perform(lane, lane.flying[MOST_AT_ONCE - 1])
            lane.remember(step, record)
            self._ready.append(lane)
        if step.kind == "fork" and lane is not None:
            child = self._lane(step.detail, step.child)
            child.begin_as(lane)
            self._ready.append(child)
            if step.child == step.agent:
                self._roles.fork(lane, child)
        if isinstance(record, Event):
            self.ended = record.kind if record.kind in ("end", "restart") else ""
            self.model = record.text if record.kind == "swap" else self.model
        if step.part:
            self._roles.settle(step, record)
            return
        if isinstance(record, Failure) and self.script.words.on_failure == "stop":
            self._give_up(f"step {record.step} failed")
        self._end(step, getattr(record, "answer", None))

    def _give_up(self, reason: str) -> None:
        """Begin no step any more, but for the run's end."""
        if not self._failed:
            self._failed = reason
            self._layout.give_up(reason)
            for lane in self.lanes.values():
                while lane.waiting:
                    self._end(lane.waiting.popleft(), None)

    def _end(self, step: Step, text: str | None) -> None:
        self._open -= 1
        for lane in map(self.lanes.__getitem__, step.holds):
            if lane.held is step:
                lane.held = None
                self._ready.append(lane)
        step.end(text)

    # -- laying out and beginning ------------------------------------------------------

    def _advance(self) -> None:
        """Begin all that can begin."""
        while not self.ended and (self._lay_out() | self._begin_ready() | self._roles.advance()):
            pass

    def _lay_out(self) -> bool:
        moved = False
        while (step := self._layout.next(self._open)) is not None:
            self._open, moved = self._open + 1, True
            if step.kind in WHOLE:
                self._submit(None, step)
            else:
                self._queue(step)
        return moved

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
            while lane.awake and self._begin(lane, lane.waiting[0]):
                lane.waiting.popleft()
        return moved

    def _begin(self, lane: Lane, step: Step) -> bool:
        """Begin a lane's next step, or skip it; False if it has to wait."""
        if lane.held is not None:
            return False
        last = lane.flying[-1].kind if lane.flying else None
        if last and (last == "probe" or step.holds or step.kind in ("fork", "probe", "lend")):
            return False
        if (source := step.source) is not None and step.kind == "lend":
            if source.ended:
                return self._skip(step)
            lane.held = source
            self._ready.append(self.lanes[source.lane])
            return False
        if step.kind == "fork":
            return self._submit(lane, step)
        if step.kind == "hear":
            return self._hear(lane, step)
        if step.asks and any(flying.asks for flying in lane.flying):
            return False
        if step.if_heard and not lane.unread:
            step.idle = True
            return self._skip(step)
        if any(self.lanes[name].held is not step for name in step.holds[1:]):
            return False
        try:
            step.call = make_call(self.script, self._answers, lane, step)
        except NotYet as not_yet:
            lane.asleep = True
            when_ended(not_yet.steps, lambda: self._wake(lane))
            return False
        except Exception as error:  # Whatever a template may do.
            _fails(step, error)
            return self._submit(lane, step)
        if step.call is None:
            return self._skip(step)
        step.heard = tuple(said.step for said in lane.unread)
        heard = lane.unread
        if step.kind != "probe":
            lane.unread = []
        if step.kind == "tell":
            self._end(step, step.call.text)
            return True
        if step.holds:
            self._roles.begin(lane, step, heard, self.lanes)
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
        try:
            step.call = Call(as_heard(self.script, source))
        except Exception as error:  # Whatever a form may do.
            _fails(step, error)
            return self._submit(lane, step)
        if source.lane != lane.name:  # What an agent says itself it remembers, and has not heard.
            said = SimpleNamespace(speaker=source.agent, text=source.text, step=source.number)
            lane.unread.append(said)
        return self._submit(lane, step)

    def _submit(self, lane: Lane | None, step: Step) -> bool:
        """Let a step be performed once its agent has room for it, or, while there are records, be
        found in them."""
        self._pending[step.key] = step
        if lane is not None:
            lane.flying.append(step)
        if self._agents is not None and (lane is None or len(lane.flying) <= MOST_AT_ONCE):
            self._agents.perform(lane, step)
        return True


def _fails(step: Step, error: Exception) -> None:
    """It fails before it can begin. What a probe expects it still does, filled in or not."""
    expected = step.words.expect if isinstance(step.words, ProbeWords) else None
    step.call = Call("", expected=expected)
    step.failed = type(error).__name__, str(error)
