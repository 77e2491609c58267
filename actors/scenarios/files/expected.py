"""Whether a probe's answer is the one that was expected. Pure: any thread."""

from collections.abc import Sequence

__all__ = ["EMPTY", "as_expected", "is_empty", "never_right"]

EMPTY = "what is expected is empty: it tells no answer from another"


def as_expected(answer: str, expected: str, match: str | None, choices: Sequence[str] = ()) -> bool:
    """Whether a probe's `answer` is the one that was `expected`, as its `match` has it: without
    one, whether it contains it, or is it, where that is one of the `choices`."""
    said, meant = answer.strip(), expected.strip()
    chosen = match is None and meant in map(str.strip, choices)
    return said == meant if chosen or match == "exact" else meant.casefold() in said.casefold()


def is_empty(expected: str | None) -> bool:
    """Whether something is `expected` that tells no answer from another."""
    return expected is not None and not expected.strip()


def never_right(expected: str | None, choices: Sequence[str], match: str | None) -> str:
    """Why no one of a probe's `choices` is what is `expected`, as its `match` has it; nothing where
    one is, or either is left out."""
    if expected is None or not choices:
        return ""
    right = sum(as_expected(choice, expected, match, choices) for choice in choices)
    if right > 1 and match is None:
        return f"{expected!r} is in several of the choices"
    return "" if right else f"{expected!r} is none of the choices"
