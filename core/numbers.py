"""The one rule of numbers in arguments, NumPy's among them: whole is what `operator.index` takes, a
number what `float` takes. Neither True nor text is one. Pure: any thread."""

import operator
from numbers import Real

__all__ = ["number", "whole"]


def whole(value: object) -> int | None:
    """The value as an int; None if it is none."""
    if isinstance(value, bool):
        return None
    try:
        return int(operator.index(value))  # type: ignore[arg-type]
    except TypeError:
        return None


def number(value: object) -> float | None:
    """The value as a float; None if it is none, or an int that no float can hold."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return None
