"""What a scenario file is refused with: the place, the rule, the nearest word. Any thread."""

import difflib
from collections.abc import Iterable

from kvactors.core.errors import InvalidInput

__all__ = ["InvalidScenario", "nearest"]


class InvalidScenario(InvalidInput):
    """A scenario that cannot be run: the message has the file, the line and what to do."""


def nearest(word: str, known: Iterable[str]) -> str:
    """What to say of a word that is none of the `known`."""
    words = sorted(set(known))
    slips = [known for known in words if sorted(known) == sorted(word)]
    found = slips or difflib.get_close_matches(word, words, 1, 0.5)
    if found:
        return f"did you mean {found[0]!r}?"
    return f"there is {', '.join(words[:12])}{', …' if len(words) > 12 else ''}" if words else ""
