"""The order of the file: phases, rounds and speakers become numbered steps.

A walk goes as far as it can without results. Where the file makes it depend on them (`when`,
`until`, `rule`, a stop rule, `each`), it yields a NotYet and is asked again. The runner's thread.
"""

import itertools
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from kvactors.actors.scenarios.files.cast import ALL, Cast
from kvactors.actors.scenarios.files.problems import InvalidScenario
from kvactors.actors.scenarios.files.schema import PhaseWords, ProbeWords, ScenarioWords, StepWords
from kvactors.actors.scenarios.files.templates import expression, names_in, template
from kvactors.actors.scenarios.running.answers import Answers
from kvactors.actors.scenarios.running.audience import Audience, listed
from kvactors.actors.scenarios.running.steps import Branch, Kind, NotYet, Step

__all__ = ["Walk"]

# Rounds of order free that are laid out before it is known whether somebody still speaks.
AHEAD = 8
Steps = Iterator[Step | NotYet]
# In the end they say whether a stop rule has ended the run.
Stopping = Generator[Step | NotYet, None, bool]


@dataclass(frozen=True, slots=True)
class _Round:
    """Where a walk is: a phase, its round, its branch, who takes part by now, and the phases that
    took place until then, this one too."""

    phase: PhaseWords
    number: int
    branch: Branch
    present: frozenset[str]
    past: tuple[str, ...] = ()


class Walk:
    """The steps of one run of the scenario of these `words` with this `cast`. `answers` has what
    was said so far, and is told of each step."""

    def __init__(self, words: ScenarioWords, cast: Cast, answers: Answers) -> None:
        self._words = words
        self._cast = cast
        self._answers = answers
        self._numbers = itertools.count(1)
        self._audience = Audience(words, cast)

    def steps(self, variables: Mapping[str, Any]) -> Steps:
        """All of them, in their order, with what templates may name."""
        present = frozenset(n for n, m in self._cast.members.items() if m.joins is None)
        trunk = Branch("", {**variables, "branch": ""})
        yield from self._phases_from(0, _Round(self._words.phases[0], 1, trunk, present))
        yield self._whole("end", _Round(self._words.phases[-1], 0, trunk, present))

    def ending(self, reason: str) -> Steps:
        """The end of a run that fails."""
        here = _Round(self._words.phases[-1], 0, Branch("", {}), frozenset())
        yield self._whole("stop", here, reason)
        yield self._whole("end", here)

    def _phases_from(self, first: int, here: _Round, *, forked: bool = False) -> Stopping:
        """The phases from the `first` on; of a branch that was just `forked` there, what comes
        before that phase is done."""
        for place in range(first, len(self._words.phases)):
            phase = self._words.phases[place]
            here = replace(here, phase=phase, number=1)
            if not (forked and place == first):
                if phase.when and not (yield from self._decide(phase.when, here)):
                    continue
                if phase.restart:
                    yield self._whole("restart", here)
                if phase.swap_model:
                    yield self._whole("swap", here, phase.swap_model)
                if phase.fork:
                    return (yield from self._branches(place, here))
            joining = [n for n, m in self._cast.members.items() if m.joins == phase.name]
            for name in joining:
                origin = self._cast.members[name].from_
                assert origin is not None
                yield self._fork(here, origin, here.branch.lane(name), name)
            present, past = here.present | set(joining), (*here.past, phase.name)
            here = replace(here, present=present, past=past)
            if (yield from self._rounds(here)):
                return True
            yield from self._probes(here)
        return False

    def _branches(self, place: int, here: _Round) -> Stopping:
        phase, trunk = here.phase, here.branch
        for name, values in phase.fork.items():
            path = f"{trunk.path}/{name}" if trunk.path else name
            branch = Branch(path, {**trunk.variables, **values, "branch": path})
            for agent in self._cast.members:
                if agent in here.present:
                    yield self._fork(here, agent, branch.lane(agent), agent)
            if (yield from self._phases_from(place, replace(here, branch=branch), forked=True)):
                return True
        return False

    def _rounds(self, first: _Round) -> Stopping:
        rounds: list[list[Step]] = []
        for number in range(1, first.phase.rounds + 1):
            here = replace(first, number=number)
            laid: list[Step] = []
            for step in self._round(here):
                if isinstance(step, Step):
                    laid.append(step)
                yield step
            for rule in self._words.stop:
                if (yield from self._decide(rule.when, here)):
                    yield self._whole("stop", here, rule.reason)
                    return True
            if here.phase.until and (yield from self._decide(here.phase.until, here)):
                return False
            if here.phase.order == "free":
                rounds.append([step for step in laid if step.kind not in ("hear", "lend")])
                if number > AHEAD and (yield from self._over(rounds.pop(0), first.phase)):
                    return False
        return False

    def _over(self, steps: Sequence[Step], phase: PhaseWords) -> Any:
        """Whether nobody spoke in a round of these `steps`, and nobody ever will; once that is
        known. Who has heard something, and is silent, may speak in another round of the `phase`."""
        if open_ := [step for step in steps if not step.ended]:
            yield NotYet(open_)
        if any(step.text is not None for step in steps):
            return False
        return all(step.idle for step in steps) or not self._by_round(phase)

    def _by_round(self, phase: PhaseWords) -> bool:
        """Whether what is done in a phase may be another thing in each round, though nothing is
        heard or answered meanwhile: the file names the round, or somebody's own code may."""
        who = self._cast.resolve(phase.who, InvalidScenario)
        if any(self._cast.members[name].behaviour is not None for name in who):
            return True
        texts = [expression(words.when) for words in phase.steps if words.when]
        texts += [template(t) for w in phase.steps for t in (w.template, *(w.choose or ()))]
        return any("round" in names_in(text) for text in texts)

    def _round(self, here: _Round) -> Steps:
        speakers = yield from self._speakers(here)
        starts = self._cast.resolve(here.phase.starts or (ALL,), InvalidScenario)
        if here.phase.order in ("together", "free"):
            for words in here.phase.steps:
                turns = [self._speak(here, name, words) for name in speakers]
                said = [turn[-1] for turn in turns]
                for step in said:
                    step.horizon = said[0].number
                    step.if_heard = here.phase.order == "free" and not (
                        here.number == 1 and step.agent in starts
                    )
                yield from itertools.chain.from_iterable(turns)
                for step in said:
                    yield from self._heard(here, step)
            return
        for name in speakers:
            for words in here.phase.steps:
                turn = self._speak(here, name, words)
                yield from turn
                yield from self._heard(here, turn[-1])

    def _speakers(self, here: _Round) -> Any:
        who = self._cast.resolve(here.phase.who, InvalidScenario)
        names = [name for name in who if name in here.present]
        if here.phase.order == "random":
            seed = here.branch.variables["seed"]
            Random(f"{seed}/{here.branch.path}/{here.phase.name}/{here.number}").shuffle(names)
        if here.phase.rule:
            chosen = yield from self._decide(here.phase.rule, here, taken=listed)
            for name in chosen:
                if name not in names:
                    raise InvalidScenario(
                        f"the rule of phase {here.phase.name!r} names {name!r}, who is not in `who`"
                    )
            return chosen
        return names

    def _speak(self, here: _Round, agent: str, words: StepWords) -> list[Step]:
        """What an agent does; before it, those whom its behaviour may ask are lent to it."""
        listeners, form = self._audience.of(here.phase, here.branch, agent, words)
        member = self._cast.members[agent]
        acts = member.behaviour is not None and words.verb != "tell"
        asked = [name for name in member.asks if acts and name in here.present]
        lent = [self._new("lend", here, name) for name in asked]
        step = self._new(words.verb, here, agent, words)  # type: ignore[arg-type]
        step.listeners = tuple(name for name in listeners if name in here.present)
        step.form = form
        step.holds = (step.lane, *(each.lane for each in lent)) if acts else ()
        for each in lent:
            each.source = step
        return [*lent, step]

    def _heard(self, here: _Round, source: Step) -> Iterator[Step]:
        for name in source.listeners:
            step = self._new("hear", here, name)
            step.source = source
            yield step

    def _probes(self, here: _Round) -> Steps:
        for probe in self._words.probes:
            if ALL not in probe.after and here.phase.name not in probe.after:
                continue
            if probe.about and probe.about not in here.past:
                continue
            distance = here.past[::-1].index(probe.about) if probe.about else None
            for name in self._cast.resolve(probe.who, InvalidScenario):
                if name in here.present:
                    yield from self._probe(here, name, probe, distance)

    def _probe(self, here: _Round, name: str, probe: ProbeWords, distance: int | None) -> Steps:
        items = [None]
        if probe.each:
            view = self._cast.members[name].view
            items = yield from self._decide(probe.each, here, {"agent": view}, taken=list)
        for item in items:
            step = self._new("probe", here, name, probe)
            step.item, step.distance = item, distance
            yield step

    def _decide(
        self,
        source: str,
        here: _Round,
        more: Mapping[str, Any] | None = None,
        *,
        taken: Callable[[Any], Any] = bool,
    ) -> Any:
        """What an expression says, `taken` as a kind of value, once what it depends on is there."""
        queries = self._answers.queries(here.branch, None)
        names = {"phase": here.phase.name, "round": here.number, "agents": self._cast.views}
        while True:
            try:
                return taken(
                    expression(source).render(
                        **{**here.branch.variables, **names, **queries, **(more or {})}
                    )
                )
            except NotYet as not_yet:
                yield not_yet
            except InvalidScenario:
                raise
            except Exception as error:  # Whatever an expression may do.
                raise InvalidScenario(
                    f"{source!r} of phase {here.phase.name!r} fails: {error}"
                ) from error

    def _fork(self, here: _Round, agent: str, lane: str, child: str) -> Step:
        step = self._new("fork", here, agent)
        step.detail, step.child = lane, child
        return step

    def _whole(self, kind: Kind, here: _Round, detail: str = "") -> Step:
        step = Step(next(self._numbers), kind, "", "", here.phase.name, here.number, here.branch)
        step.detail = detail
        return step

    def _new(
        self,
        kind: Kind,
        here: _Round,
        agent: str,
        words: StepWords | ProbeWords | None = None,
    ) -> Step:
        lane, number = here.branch.lane(agent), next(self._numbers)
        step = Step(number, kind, lane, agent, here.phase.name, here.number, here.branch, words)
        step.horizon = number
        self._answers.add(step)
        return step
