"""Who hears what is said, and in which form. The runner's thread."""

from kvactors.actors.scenarios.files.cast import Cast
from kvactors.actors.scenarios.files.problems import InvalidScenario
from kvactors.actors.scenarios.files.schema import PhaseWords, ScenarioWords, StepWords
from kvactors.actors.scenarios.files.templates import expression
from kvactors.actors.scenarios.running.names import names_of, without
from kvactors.actors.scenarios.running.steps import Branch

__all__ = ["DEFAULT_FORM", "Audience"]

DEFAULT_FORM = "{{ speaker.name }}: {{ text }}"


class Audience:
    """The listeners of the scenario of these `words` with this `cast`."""

    def __init__(self, words: ScenarioWords, cast: Cast) -> None:
        self._words = words
        self._cast = cast
        self._channels: dict[tuple[str, str], tuple[str, ...]] = {}

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
            return (heard if words.verb == "tell" else without(heard, speaker)), DEFAULT_FORM
        if channel is not None:
            own = (speaker,) if words.verb == "tell" else ()
            listeners = self._in_channel(channel, speaker, branch)
            return listeners + own, self._words.channels[channel].form
        if words.verb == "say":
            everyone = self._cast.resolve(phase.who, InvalidScenario)
            return without(everyone, speaker), DEFAULT_FORM
        return ((speaker,) if words.verb == "tell" else ()), None

    def _in_channel(self, channel: str, speaker: str, branch: Branch) -> tuple[str, ...]:
        key = channel, branch.lane(speaker)
        if key not in self._channels:
            words = self._words.channels[channel]
            members = self._cast.resolve(words.members, InvalidScenario)
            if words.listeners:
                view = self._cast.members[speaker].view
                variables = {**branch.variables, "speaker": view, "agents": self._cast.views}
                named = names_of(expression(words.listeners), variables, channel)
                chosen = self._cast.resolve(named, InvalidScenario)
                members = tuple(name for name in chosen if name in members)
            self._channels[key] = without(members, speaker)
        return self._channels[key]
