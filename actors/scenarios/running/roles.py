"""Agents whose own code says what they say: behaviours, run step by step.

For each step of its agent a behaviour's `on_message` is called with a `Cue`, and what it returns is
said. Where a journal is gone through again, the code runs again on what is recorded: what it keeps
in its attributes is there again, too. The runner's thread.
"""

import copy
import inspect
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from kvactors.actors.behaviours.behaviour import AgentBehaviour
from kvactors.actors.behaviours.named import checked_behaviour
from kvactors.actors.scenarios.files.cast import Cast
from kvactors.actors.scenarios.files.checks import load_own
from kvactors.actors.scenarios.files.problems import InvalidScenario
from kvactors.actors.scenarios.files.templates import Problem
from kvactors.actors.scenarios.journal.file import Record
from kvactors.actors.scenarios.running.lanes import Lane
from kvactors.actors.scenarios.running.scene import Answer, Awaited, Scene
from kvactors.actors.scenarios.running.script import Script
from kvactors.actors.scenarios.running.steps import Step
from kvactors.core.errors import InvalidInput
from kvactors.core.text import check_text

__all__ = ["Cue", "Roles", "behaviour_class", "check_behaviours"]

Submit = Callable[[Lane, Step], object]


@dataclass(frozen=True, slots=True)
class Cue:
    """What a behaviour's `on_message` is given: the `text` of its step, filled in; the `choices` of
    a `choose`; and what a text of the file may name."""

    text: str
    choices: tuple[str, ...]
    phase: str
    round: int
    branch: str
    seed: int
    parameters: Mapping[str, Any]
    agent: SimpleNamespace
    agents: Sequence[SimpleNamespace]
    heard: Sequence[SimpleNamespace]


class Roles:
    """The roles of one run of a `script`. `submit` lets a part of a step be performed in a lane,
    and the step itself once what is said is known; `skip` is told of one in which nothing is."""

    def __init__(self, script: Script, submit: Submit, skip: Callable[[Step], object]) -> None:
        self._script = script
        self._submit = submit
        self._skip = skip
        self._roles: dict[str, _Role] = {}
        self._ready: deque[_Role] = deque()

    def begin(
        self, lane: Lane, step: Step, heard: Sequence[SimpleNamespace], lanes: Mapping[str, Lane]
    ) -> None:
        """Let the behaviour of a `lane`, which has `heard` this since its last turn, begin a `step`
        with those of the `lanes` that it holds."""
        if lane.name not in self._roles:
            self._roles[lane.name] = _Role(lane, Scene(lane, self._submit))
        lane.held, role = step, self._roles[lane.name]
        lent = (lanes[name] for name in step.holds[1:])
        cue = self._cue(lane, step, heard)
        role.begin(step, cue, {other.member.name: other for other in lent})
        self._ready.append(role)

    def settle(self, step: Step, record: Record) -> None:
        """A part has ended with a `record`; its behaviour goes on in `advance`."""
        assert step.source is not None
        role = self._roles[step.source.lane]
        role.scene.settle(step.part, record)
        self._ready.append(role)

    def fork(self, lane: Lane, child: Lane) -> None:
        """Another lane goes on with what the behaviour of a lane keeps. Raises InvalidScenario."""
        if lane.name in self._roles:
            scene = Scene(child, self._submit)
            self._roles[child.name] = self._roles[lane.name].copy(child, scene)

    def advance(self) -> bool:
        """Let all go on that can; whether there was one."""
        moved = bool(self._ready)
        while self._ready:
            role = self._ready.popleft()
            step = role.advance()
            if step is not None and step.said is None and step.failed is None:
                self._skip(step)
            elif step is not None:
                self._submit(role.lane, step)
        return moved

    def _cue(self, lane: Lane, step: Step, heard: Sequence[SimpleNamespace]) -> Cue:
        assert step.call is not None
        return Cue(
            step.call.text,
            step.call.choices,
            phase=step.phase,
            round=step.round,
            branch=step.branch.path,
            seed=self._script.point.seed,
            parameters={
                name: step.branch.variables[name] for name in self._script.words.parameters
            },
            agent=lane.member.view,
            agents=self._script.cast.views,
            heard=heard,
        )


class _Role:
    """The behaviour of a `lane`, which acts in a `scene`."""

    def __init__(self, lane: Lane, scene: Scene) -> None:
        self.lane = lane
        self.scene = scene
        self._behaviour: AgentBehaviour | None = None
        self._step: Step | None = None
        self._work: Coroutine[Any, Any, str | None] | None = None
        self._awaited: Awaited | None = None

    def begin(self, step: Step, cue: Cue, lent: Mapping[str, Lane]) -> None:
        """Begin a `step` with its `cue`, for which agents are `lent`."""
        self.scene.enter(step, lent)
        self._step, self._work, self._awaited = step, self._play(cue), None

    async def _play(self, cue: Cue) -> str | None:
        if self._behaviour is None:
            made = behaviour_class(self.lane.member.behaviour or "", InvalidScenario)()
            made.bind(self.scene)  # type: ignore[arg-type]
            self._behaviour = made
            await _value(made.on_start())
        said = await _value(self._behaviour.on_message(cue, None))
        return _checked(said.text if isinstance(said, Answer) else said, cue)

    def advance(self) -> Step | None:
        """Go on, if what it awaits is there; the step, where it has ended behind all of its
        parts."""
        if self._work is not None and (self._awaited is None or self._awaited.done):
            self._run(self._work, self._step)
        ended = None
        if self._work is None and self._step is not None and not self.scene.open:
            ended, self._step = self._step, None
            self.scene.enter(None, {})
        return ended

    def _run(self, work: Coroutine[Any, Any, str | None], step: Any) -> None:
        """Run until it awaits a part, or ends."""
        try:
            awaited = work.send(None)
            while not isinstance(awaited, Awaited):
                awaited = work.throw(
                    TypeError("a scenario's behaviour awaits its own methods, nothing of asyncio")
                )
            self._awaited = awaited
        except StopIteration as stop:
            step.said, self._work = stop.value, None
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            # Made anew for its next step, as a supervised behaviour is that restarts.
            step.failed, self._work = (type(error).__name__, str(error)), None
            self._behaviour = None

    def copy(self, lane: Lane, scene: Scene) -> "_Role":
        """The same for another `lane` and its `scene`. Raises InvalidScenario."""
        other = _Role(lane, scene)
        try:
            other._behaviour = copy.deepcopy(self._behaviour, {id(self.scene): scene})
        except Exception as error:  # Whatever somebody's attributes may do.
            what = f"{self.lane.member.behaviour} of {self.lane.name}"
            raise InvalidScenario(f"{what} cannot be copied into {lane.name}: {error}") from error
        return other


def behaviour_class(name: str, at: Problem) -> type[AgentBehaviour]:
    """The behaviour `module:Class`. Raises what `at` makes."""
    found = checked_behaviour(name, load_own(name, at), at)
    if found.blocking or found.reentrant:
        raise at(f"{name} is blocking or reentrant: in a scenario it has one step at a time")
    return found


def check_behaviours(cast: Cast, problem: Any) -> None:
    """Every behaviour of a `cast` is one. Raises what `problem` makes of a place."""
    named = {
        (member.view.group, member.behaviour)
        for member in cast.members.values()
        if member.behaviour
    }
    for group, name in sorted(named):
        place = ("agents", group, "behaviour")
        behaviour_class(name, lambda text, place=place: problem(place, text))  # type: ignore[misc]


async def _value(made: Any) -> Any:
    return await made if inspect.isawaitable(made) else made


def _checked(said: Any, cue: Cue) -> str | None:
    """What a behaviour says, if it may; None where it says nothing."""
    if said is None:
        return None
    if not isinstance(said, str):
        raise TypeError(f"on_message returns what is said, a text or an Answer, not {said!r:.80}")
    if cue.choices and said not in cue.choices:
        raise InvalidInput(f"{said!r:.80} is none of the choices {', '.join(cue.choices)}")
    return check_text("what is said", said)
