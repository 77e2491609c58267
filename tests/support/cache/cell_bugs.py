"""Bugs of the op for exporters, put where torch runs it."""

from typing import Any

import torch
from seeded import bug

from kvactors.core.attention.export import cells
from kvactors.core.attention.export.cells import Cells

__all__ = ["BUGS", "a_commit_moves_nothing"]


@bug(Cells, "update_and_attend")
def the_op_ignores_its_layer(true: Any) -> Any:
    return lambda self, *given, **node: true(self, *given, **{**node, "layer_id": 0})


@bug(Cells, "gather_into")
def a_commit_is_off_by_one(true: Any) -> Any:
    return lambda self, base, some: true(self, base, [cell + 1 for cell in some])


@bug(Cells, "gather_into")
def a_commit_moves_nothing(_true: Any) -> Any:
    return lambda self, base, some: None


@bug(cells, "_visible")
def a_sibling_is_visible(true: Any) -> Any:
    def visible(plan: Any) -> Any:
        before = torch.arange(plan.read) <= torch.tensor(list(plan.cells))[:, None]
        return true(plan) | before

    return visible


BUGS = [the_op_ignores_its_layer, a_commit_is_off_by_one, a_sibling_is_visible]
"""Those that a whole model shows."""
