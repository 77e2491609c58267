"""What a scenario's words must mean before anything runs: names, quotes of results, columns.

Any thread.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kvactors.actors.scenarios.files.cast import ALL, Cast
from kvactors.actors.scenarios.files.expected import EMPTY, is_empty, never_right
from kvactors.actors.scenarios.files.own import own_module
from kvactors.actors.scenarios.files.problems import InvalidScenario, nearest
from kvactors.actors.scenarios.files.schema import (
    PhaseWords,
    ProbeWords,
    ScenarioWords,
)
from kvactors.actors.scenarios.files.templates import (
    QUERIES,
    Problem,
    Template,
    calls,
    check_names,
    columns_of,
    dynamic,
    expression,
    placed,
    template,
)

__all__ = ["OWN_NAMES", "Checks", "load_own"]

# What templates call by these names is not a parameter.
OWN_NAMES = frozenset(QUERIES) | frozenset(
    ["seed", "branch", "agent", "agents", "speaker", "text", "phase", "round", "heard", "item"]
)
BASE = ("seed", "branch")

MakeProblem = Callable[[tuple[str | int, ...], str], InvalidScenario]


class Checks:
    """All of them, of the `words` of a file and their `cast`; `problem` makes the error of a place.
    `run` raises InvalidScenario for the first that fails."""

    def __init__(self, words: ScenarioWords, cast: Cast, problem: MakeProblem) -> None:
        self._words = words
        self._cast = cast
        self._make = problem
        self._phases = [phase.name for phase in words.phases]
        self._base = [*words.parameters, *BASE]

    def run(self) -> None:
        """Look at everything."""
        self._parameters()
        self._channels()
        for number, phase in enumerate(self._words.phases):
            self._phase(number, phase)
        self._probes()
        for number, metric in enumerate(self._words.metrics):
            if not callable(load_own(metric, self._at("metrics", number))):
                raise self._make(("metrics", number), f"{metric} is no function")
        for number, stop in enumerate(self._words.stop):
            at = self._at("stop", number, "when")
            text = placed(expression, stop.when, at)
            self._text(text, ["agents", "phase", "round", *QUERIES], at)
            self._quotes(text, len(self._phases), at)

    def _at(self, *place: str | int) -> Problem:
        return lambda text: self._make(place, text)

    def _parameters(self) -> None:
        for name, values in self._words.parameters.items():
            at = self._at("parameters", name)
            if name in OWN_NAMES:
                raise at(f"{name!r} means something else in templates: call it otherwise")
            if isinstance(values, tuple) and (not values or len(set(values)) < len(values)):
                raise at("its values must be different, one at least")
        for name in self._phases:
            if self._phases.count(name) > 1:
                raise self._make(("phases", self._phases.index(name)), f"two phases are {name!r}")

    def _channels(self) -> None:
        for name, channel in self._words.channels.items():
            members = self._cast.resolve(channel.members, self._at("channels", name, "members"))
            at = self._at("channels", name, "form")
            form = placed(template, channel.form, at)
            self._text(form, ["speaker", "text", "phase", "round"], at)
            self._columns(form, "speaker", members, at)
            if channel.listeners:
                at = self._at("channels", name, "listeners")
                listeners = placed(expression, channel.listeners, at)
                self._text(listeners, ["speaker", "agents"], at)
                self._columns(listeners, "speaker", members, at)

    def _phase(self, number: int, phase: PhaseWords) -> None:
        here = ("phases", number)
        if not (phase.steps or phase.restart or phase.swap_model or phase.fork):
            raise self._make(here, "a phase without steps does nothing")
        who = self._cast.resolve(phase.who, self._at(*here, "who"))
        named = {name for name in phase.who if name in self._cast.members}
        for name in sorted(named):
            joins = self._cast.members[name].joins
            if joins is not None and self._phases.index(joins) > number:
                raise self._make((*here, "who"), f"{name} joins only at phase {joins!r}")
        starts = self._cast.resolve(phase.starts, self._at(*here, "starts"))
        if starts and not set(starts) & set(who):
            names = ", ".join(phase.starts)
            raise self._make((*here, "starts"), f"`who` has none of {names}: nobody would speak")
        if phase.channel is not None and phase.channel not in self._words.channels:
            known = nearest(phase.channel, self._words.channels)
            raise self._make((*here, "channel"), f"no such channel: {known}")
        for word, reach in (("when", number), ("until", number + 1), ("rule", number + 1)):
            if source := getattr(phase, word):
                at = self._at(*here, word)
                text = placed(expression, source, at)
                self._text(text, ["agents", "phase", "round", *QUERIES], at)
                self._quotes(text, reach, at)
        self._fork(here, phase.fork)
        if phase.swap_model and any(p.fork for p in self._words.phases[: number + 1]):
            raise self._make((*here, "swap_model"), "branches of a run have one model")
        for place, step in enumerate(phase.steps):
            self._step((*here, "steps", place), number, who, step)

    def _fork(self, here: tuple[str | int, ...], branches: Mapping[str, Mapping[str, Any]]) -> None:
        for branch, values in branches.items():
            for name in values:
                if name not in self._words.parameters:
                    known = nearest(name, self._words.parameters)
                    raise self._make((*here, "fork", branch), f"no parameter {name!r}: {known}")

    def _step(
        self, here: tuple[str | int, ...], number: int, who: Sequence[str], step: Any
    ) -> None:
        names = ["agent", "agents", "phase", "round", "heard", *QUERIES]
        texts = [(step.verb if step.verb != "choose" else "prompt", template, step.template)]
        texts += [("when", expression, step.when)] if step.when else []
        texts += [("choose", template, choice) for choice in step.choose or ()]
        for word, made, source in texts:
            at = self._at(*here, word)
            text = placed(made, source, at)
            self._text(text, names, at)
            self._columns(text, "agent", who, at)
            self._quotes(text, number + 1, at)
        if step.to and not (len(step.to) == 1 and step.to[0] in self._words.channels):
            known = [*self._words.channels, *self._cast.members]
            self._cast.resolve(
                step.to,
                lambda text: self._make(
                    (*here, "to"), f"neither a channel nor agents: {nearest(step.to[0], known)}"
                ),
            )

    def _probes(self) -> None:
        names = [probe.name for probe in self._words.probes]
        for number, probe in enumerate(self._words.probes):
            here = ("probes", number)
            if names.count(probe.name) > 1:
                raise self._make(here, f"two probes are {probe.name!r}")
            who = self._cast.resolve(probe.who, self._at(*here, "who"))
            about = () if probe.about is None else (probe.about,)
            for word, phases in (("after", probe.after), ("about", about)):
                for phase in phases:
                    if phase not in self._phases and (word, phase) != ("after", ALL):
                        known = nearest(phase, self._phases)
                        raise self._make((*here, word), f"no such phase as {phase!r}: {known}")
            for phase in probe.after:
                if probe.about and phase != ALL and self._order(phase) < self._order(probe.about):
                    raise self._make(
                        (*here, "after"), f"{phase!r} is before {probe.about!r}, which it is about"
                    )
            self._probe(here, probe, who)

    def _probe(self, here: tuple[str | int, ...], probe: ProbeWords, who: Sequence[str]) -> None:
        """What a probe asks, and what it quotes when it is first asked."""
        names = ["agent", "agents", "phase", "round", *QUERIES]
        after = self._phases if ALL in probe.after else probe.after
        first = min(self._order(phase) for phase in after)
        reach = 1 + max(first, self._order(probe.about) if probe.about else 0)
        texts = [(word, template, getattr(probe, word)) for word in ("ask", "expect")]
        texts += [(word, expression, getattr(probe, word)) for word in ("when", "each")]
        texts += [("choices", template, choice) for choice in probe.choices]
        for word, made, source in texts:
            if not source:
                continue
            at = self._at(*here, word)
            text = placed(made, source, at)
            own = [] if word == "each" else ["heard", *(["item"] if probe.each else [])]
            self._text(text, [*names, *own], at)
            self._columns(text, "agent", who, at)
            self._quotes(text, reach, at)
        expect, choices = probe.expect, probe.choices
        if is_empty(expect):
            raise self._make((*here, "expect"), EMPTY)
        known_now = expect is not None and not any(map(dynamic, (expect, *choices)))
        if known_now and (wrong := never_right(expect, choices, probe.match)):
            known = nearest(str(expect), choices)
            raise self._make((*here, "expect"), f"{wrong}: {known}")

    def _order(self, phase: str) -> int:
        return self._phases.index(phase)

    def _text(self, text: Template, names: Iterable[str], at: Problem) -> None:
        check_names(text, [*self._base, *names], at)

    def _columns(self, text: Template, of: str, who: Sequence[str], at: Problem) -> None:
        has = self._cast.columns(who)
        for column in sorted(columns_of(text, of) - has):
            lacking = next(n for n in who if column not in vars(self._cast.members[n].view))
            raise at(f"{lacking} has no column {column!r}: {nearest(column, has)}")

    def _quotes(self, text: Template, reach: int, at: Problem) -> None:
        """Results that are asked for exist, and come from one of the first `reach` phases."""
        for _, filters in calls(text):
            for word in ("phase", "agent", "step"):
                if not isinstance(filters.get(word), str | None):
                    raise at(f"a {word} goes by its name, and not {filters[word]!r:.80}")
            number = filters.get("round")
            if number is not None and (type(number) is not int or number < 1):
                raise at(f"a round goes by its number, from 1 on, and not {number!r:.80}")
            if not isinstance(filters.get("text"), str | None):
                raise at(f"what is counted is a text, and not {filters['text']!r:.80}")
            phase = filters.get("phase")
            if phase is not None and phase not in self._phases:
                raise at(f"no phase is called {phase!r}: {nearest(str(phase), self._phases)}")
            if phase is not None and self._order(phase) >= reach:
                raise at(f"{phase!r} comes later: a result can be asked for when it is there")
            if (agent := filters.get("agent")) is not None and agent not in self._cast.members:
                raise at(f"no agent is called {agent!r}: {nearest(str(agent), self._cast.members)}")
            steps = {step.name for p in self._words.phases for step in p.steps}
            if (step := filters.get("step")) is not None and step not in steps:
                raise at(f"no step is called {step!r}: {nearest(str(step), steps)}")


def load_own(name: str, at: Problem) -> Any:
    """What a module of somebody's own has, by `module:name`. Raises what `at` makes."""
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise at(f"what is your own is named module:name, not {name!r}")
    try:
        found = own_module(module)
    except (Exception, SystemExit) as error:  # Whatever somebody's module may do.
        if isinstance(error, ModuleNotFoundError) and module.startswith(error.name or ":"):
            raise at(f"no module {error.name!r} is beside the file, or installed") from error
        raise at(f"{module} cannot be imported: {type(error).__name__}: {error}") from error
    if not hasattr(found, attribute):
        public = [known for known in vars(found) if not known.startswith("_")]
        raise at(f"{found.__file__} has no {attribute!r}: {nearest(attribute, public)}")
    return getattr(found, attribute)
