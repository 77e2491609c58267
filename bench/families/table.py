"""What was found of model families, as a table."""

import itertools
from dataclasses import asdict, dataclass

__all__ = ["Row", "render"]

COLUMNS = (
    "family",
    "layers",
    "rows",
    "logits",
    "batched",
    "restarted",
    "float",
    "kept",
    "fixed",
    "why not",
)


@dataclass
class Row:
    """What was found of a family. Bytes: of KV for a token in float and as kept, and of
    windows and states for an agent."""

    family: str
    layers: str = ""
    rows: str = ""
    logits: str = ""
    batched: str = ""
    restarted: str = ""
    float_bytes: int = 0
    kept_bytes: int = 0
    fixed_bytes: int = 0
    reason: str = ""


def render(rows: list[Row]) -> str:
    """The table, its totals, and what the columns mean."""
    cells = [COLUMNS, *(tuple(map(_cell, asdict(row).values())) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(COLUMNS))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]
    exact = sum(row.batched == row.restarted == "exact" for row in rows)
    counts = itertools.groupby(sorted(row.rows for row in rows if row.rows))
    same = sum(row.logits == "same" for row in rows)
    ways = ", ".join(f"{len(list(group))} {name}" for name, group in counts)
    return "\n".join(
        [
            "Model families of mlx-lm over kvactors, as `python -m kvactors.bench.families` found",
            "them: tiny random grid models in true geometry, packed attention.",
            "",
            "rows: in one batch, or one by one, as plain and latent layers are where sums must not",
            'depend on the batch; with attention="auto" most of those run in one too.',
            "logits: those of mlx-lm's own caches, in float, behind 270 tokens.",
            "batched, restarted: tokens are those of the agent alone, and after a restart in a new",
            "process. float, kept: bytes of KV for a token. fixed: bytes of windows and states for",
            "an agent.",
            "",
            f"{exact} of {len(rows)} modules exact, {same} with mlx-lm's logits; {ways}.",
            "",
            *lines,
            "",
        ]
    )


def _cell(value: object) -> str:
    return "" if value == 0 else str(value)
