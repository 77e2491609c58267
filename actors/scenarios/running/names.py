"""Lists of names, as expressions of a file give them. Any thread."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvactors.actors.scenarios.files.problems import InvalidScenario
from kvactors.actors.scenarios.files.templates import Template

__all__ = ["listed", "names_of", "without"]


def without(names: Sequence[str], speaker: str) -> tuple[str, ...]:
    """All but one."""
    return tuple(name for name in names if name != speaker)


def listed(value: Any) -> list[Any]:
    """A name alone is a list of one. Raises TypeError."""
    return [value] if isinstance(value, str) else list(value)


def names_of(listeners: Template, variables: Mapping[str, Any], channel: str) -> list[str]:
    """Whom the `listeners` of a `channel` name, filled in with `variables`. Raises
    InvalidScenario."""
    try:
        names = listed(listeners.render(**variables))
    except Exception as error:  # Whatever an expression may do.
        raise InvalidScenario(f"`listeners` of channel {channel!r} fails: {error}") from error
    if not all(isinstance(name, str) for name in names):
        raise InvalidScenario(f"`listeners` of channel {channel!r} are names, not {names!r:.80}")
    return names
