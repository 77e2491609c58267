"""Who hears what is said, and in which form. The runner's thread."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvactors.actors.scenarios.files.cast import Cast
from kvactors.actors.scenarios.files.problems import InvalidScenario
from kvactors.actors.scenarios.files.schema import PhaseWords, ScenarioWords, StepWords
from kvactors.actors.scenarios.files.templates import Template, expression
from kvactors.actors.scenarios.running.steps import Branch

__all__ = ["DEFAULT_FORM", "Audience", "listed"]

DEFAULT_FORM = "{{ speaker.name }}: {{ text }}"


class Audience:
    """The listeners of the scenario of these `words` with this `cast`."""

    def __init__(self, words: ScenarioWords, cast: Cast) -> None:
        self._words = words
        self._cast = cast
        self._channels: dict[tuple[str, str], tuple[str, ...]] = {}
        self._members: dict[str, tuple[str, ...]] = {}

    def of(
        self, phase: PhaseWords, branch: Branch, speaker: str, words: StepWords
    ) -> tuple[tuple[str, ...], str | None]:
        """Who hears the step of these `words` that `speaker` takes in a `phase` of a `branch`, and
        in which form. Raises InvalidScenario."""
        channel = phase.channel if words.verb == "say" else None
        if len(words.to) == 1 and words.to[0] in self._words.channels:
            channel = words.to[0]
        elif words.to:
            heard = self._cast.resolve(words.to, InvalidScenario)
            return (heard if words.verb == "tell" else _without(heard, speaker)), DEFAULT_FORM
        if channel is not None:
            own = (speaker,) if words.verb == "tell" else ()
            listeners = self._in_channel(channel, speaker, branch)
            return listeners + own, self._words.channels[channel].form
        if words.verb == "say":
            everyone = self._cast.resolve(phase.who, InvalidScenario)
            return _without(everyone, speaker), DEFAULT_FORM
        return ((speaker,) if words.verb == "tell" else ()), None

    def _in_channel(self, channel: str, speaker: str, branch: Branch) -> tuple[str, ...]:
        key = channel, branch.lane(speaker)
        if key not in self._channels:
            words = self._words.channels[channel]
            if channel not in self._members:
                self._members[channel] = self._cast.resolve(words.members, InvalidScenario)
            members = self._members[channel]
            if words.listeners:
                view = self._cast.members[speaker].view
                variables = {**branch.variables, "speaker": view, "agents": self._cast.views}
                named = _names_of(expression(words.listeners), variables, channel)
                chosen = self._cast.resolve(named, InvalidScenario)
                members = tuple(name for name in chosen if name in members)
            self._channels[key] = _without(members, speaker)
        return self._channels[key]


def _without(names: Sequence[str], speaker: str) -> tuple[str, ...]:
    """All but one."""
    return tuple(name for name in names if name != speaker)


def listed(value: Any) -> list[Any]:
    """A name alone is a list of one. Raises TypeError."""
    return [value] if isinstance(value, str) else list(value)


def _names_of(listeners: Template, variables: Mapping[str, Any], channel: str) -> list[str]:
    """Whom the `listeners` of a `channel` name, filled in with `variables`. Raises
    InvalidScenario."""
    try:
        names = listed(listeners.render(**variables))
    except Exception as error:  # Whatever an expression may do.
        raise InvalidScenario(f"`listeners` of channel {channel!r} fails: {error}") from error
    if not all(isinstance(name, str) for name in names):
        raise InvalidScenario(f"`listeners` of channel {channel!r} are names, not {names!r:.80}")
    return names
