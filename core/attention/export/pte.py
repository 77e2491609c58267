"""`.pte` files: what an architecture fixes of a cache, under `kv_cache.*` [cache-family, 3.2, 4.5],
beside a program that calls the op. On one thread.

A file has the op's calls, not the op: they run where somebody has kernels for them, in C++.
"""

from pathlib import Path
from typing import Any

import torch
from executorch.exir import to_edge
from executorch.runtime import Runtime

from kvactors.core.attention.export.op import ARGUMENTS, update_and_attend
from kvactors.core.cache.family.config import PREFIX, ModelFacts, write_metadata
from kvactors.core.errors import InvalidConfig

__all__ = ["read_pte", "write_pte"]

# The form in which a file without a delegate calls an op: what it returns is planned memory.
OUT = "kvcache::update_and_attend.out"
# More than any step has; torch's own "no bound" is above all numbers.
MOST_TOKENS = 1 << 31


def _into(*arguments: Any, out: torch.Tensor) -> torch.Tensor:
    return out.copy_(update_and_attend(*arguments))


torch.library.define(OUT, f"({ARGUMENTS}, *, Tensor(a!) out) -> Tensor(a!)")
torch.library.impl(OUT, "default", _into)


def write_pte(program: torch.export.ExportedProgram, facts: ModelFacts, path: Path) -> None:
    """Write an exported `program` and the `facts` of its model to a `.pte` at `path`. Raises
    InvalidConfig for a program whose steps may have any length."""
    _check_bounds(program)
    edge = to_edge(program, constant_methods=write_metadata({}, facts))
    path.write_bytes(edge.to_executorch().buffer)


def _check_bounds(program: torch.export.ExportedProgram) -> None:
    """A file says how much memory a step takes. Without a bound executorch plans for as many tokens
    as the example had, and no more could be run."""
    for name, bounds in program.range_constraints.items():
        if bounds.upper > MOST_TOKENS:
            raise InvalidConfig(
                f"dimension {name} of the program has no bound, and a .pte has planned memory: "
                "export it with Dim(..., max=the most tokens of a step)"
            )


def read_pte(path: Path) -> dict[str, int]:
    """What stands under `kv_cache.*` in a `.pte`, for `read_metadata`. Raises InvalidConfig."""
    try:
        program = Runtime.get().load_program(path)
    except RuntimeError as error:
        raise InvalidConfig(f"{path} is no .pte that executorch reads: {error}") from error
    names = sorted(name for name in program.method_names if name.startswith(PREFIX))
    return {name: program.load_method(name).execute([])[0] for name in names}
