"""Whether a probe's answer is the one that was expected. Pure: any thread."""

from collections.abc import Sequence

__all__ = ["EMPTY", "as_expected", "is_empty", "may_be_right"]

EMPTY = "what is expected is empty: it tells no answer from another"


def as_expected(answer: str, expected: str, match: str) -> bool:
    """Whether a probe's answer is the one that was expected, as its `match` has it."""
    said, meant = answer.strip(), expected.strip()
    return said == meant if match == "exact" else meant.casefold() in said.casefold()


def is_empty(expected: str | None) -> bool:
    """Whether something is `expected` that tells no answer from another."""
    return expected is not None and not expected.strip()


def may_be_right(expected: str | None, choices: Sequence[str], match: str) -> bool:
    """Whether one of a probe's `choices` is what is `expected`, as its `match` has it, or either is
    left out."""
    if expected is None or not choices:
        return True
    return any(as_expected(choice, expected, match) for choice in choices)
