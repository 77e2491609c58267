"""Bugs put into the product on purpose: the proof that a check can fail.

A bug is a row of data: the public part that it replaces, and what with. The product has no seam
for being wrong, so this is the one place where the tests put something in its place.

    @bug(Pool, "move")
    def the_hole_is_not_filled(true):
        return lambda self, target, source: None

    with seeded(the_hole_is_not_filled):
        ...
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from kvactors.core.model import load

__all__ = ["Bug", "bug", "seeded"]


@dataclass(frozen=True, slots=True)
class Bug:
    """`owner.name`, a class's or a module's, becomes what `wrong` makes of the true one."""

    title: str
    owner: Any
    name: str
    wrong: Callable[[Any], Any]

    def __str__(self) -> str:
        return self.title


def bug(owner: Any, name: str) -> Callable[[Callable[[Any], Any]], Bug]:
    """Makes a bug of a function from the true part to a wrong one."""
    return lambda wrong: Bug(wrong.__name__, owner, name, wrong)


@contextmanager
def seeded(seed: Bug) -> Iterator[None]:
    """While it lasts the product has this bug."""
    wrong = seed.wrong(vars(seed.owner)[seed.name])
    with pytest.MonkeyPatch.context() as patch:
        # What probes find with a bug is of it alone.
        for owner, name, other in ((seed.owner, seed.name, wrong), (load, "probed", {})):
            # All bugs of all tests go through this line.
            patch.setattr(owner, name, other)
        yield
