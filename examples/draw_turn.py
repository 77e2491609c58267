"""Draws `turn.svg`, the picture in the README: one turn of an agent, from ask to disk.

    python examples/draw_turn.py [--out examples/turn.svg]

Nothing but the standard library. Coordinates are in pixels of a 960 x 480 page.
"""

import argparse
from dataclasses import dataclass
from html import escape
from pathlib import Path

WIDTH, HEIGHT = 960, 480
INK, SOFT, LINE = "#1f2430", "#5b6475", "#8a93a6"
FONT = "Helvetica, Arial, 'DejaVu Sans', sans-serif"


@dataclass(frozen=True)
class Box:
    """A rectangle with a title and lines of text."""

    x: int
    y: int
    width: int
    height: int
    fill: str
    title: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Arrow:
    """From (x1, y1) to (x2, y2), with text centred at `at` and wrapped by hand."""

    x1: int
    y1: int
    x2: int
    y2: int
    at: tuple[int, int] = (0, 0)
    lines: tuple[str, ...] = ()
    dashed: bool = False


BLUE, GREEN, SAND, GREY = "#e3edfb", "#e2f3e6", "#fbf0dc", "#eef0f4"

BOXES = (
    Box(20, 72, 120, 90, GREY, "Your code", ("alice.ask(…)", ".get()")),
    Box(
        235, 40, 220, 156, BLUE, "Agent actor: alice",
        ("mailbox: one turn at a time,", "the next prompt waits", "",
         "transcript: turns and token ids,", "append-only"),
    ),
    Box(
        610, 40, 330, 156, GREEN, "GPU actor: the only MLX thread",
        ("Tick: plan → run → tell", "prefill chunks and one decode step of all", "",
         "slot arena: a row of 4-bit KV per turn"),
    ),
    Box(645, 152, 50, 16, "#bfe3c8", ""),
    Box(699, 152, 88, 16, "#8fcf9f", ""),
    Box(791, 152, 66, 16, "#bfe3c8", ""),
    Box(861, 152, 40, 16, "#bfe3c8", ""),
    Box(
        235, 300, 220, 80, BLUE, "Other agents",
        ("share threads and batch with it,", "never its cache"),
    ),
    Box(
        610, 300, 330, 80, SAND, "Persistence actor: one thread",
        ("groups the saves of all agents", "into one round of syncs"),
    ),
    Box(610, 420, 155, 40, GREY, "ledger.log"),
    Box(785, 420, 155, 40, GREY, "KV segments"),
)  # fmt: skip

ARROWS = (
    Arrow(140, 102, 235, 102, (187, 92), ("1 Prompt",)),
    Arrow(235, 142, 140, 142, (187, 160), ("6 Reply",)),
    Arrow(455, 82, 610, 82, (532, 72), ("2 Step: new tokens",)),
    Arrow(610, 118, 455, 118, (532, 108), ("4 tokens, for a stream",)),
    Arrow(610, 154, 455, 154, (532, 144), ("5 the end, new KV",)),
    Arrow(400, 196, 610, 320, (432, 258), ("7 Save",)),
    Arrow(850, 300, 850, 196, (904, 243), ("3 warm: KV", "from disk")),
    Arrow(660, 196, 660, 300, (708, 243), ("3 not in", "memory?"), dashed=True),
    Arrow(687, 380, 687, 420, (640, 404), ("8 durable",)),
    Arrow(862, 380, 862, 420, (910, 404), ("9 cached",)),
)


def draw() -> str:
    """The whole picture as SVG text."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" font-family="{FONT}" role="img" '
        'aria-label="One turn of an agent: mailbox, GPU actor, persistence actor">',
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" '
        f'markerHeight="7" orient="auto"><path d="M0 0 10 5 0 10z" fill="{LINE}"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        *map(_box, BOXES),
        *map(_arrow, ARROWS),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _box(box: Box) -> str:
    parts = [
        f'<rect x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="8" '
        f'fill="{box.fill}" stroke="{LINE}"/>'
    ]
    middle = box.x + box.width // 2
    if box.title:
        lone = box.y + box.height // 2 + 5
        parts.append(
            _text(middle, box.y + 24 if box.lines else lone, box.title, INK, 14, bold=True)
        )
    for index, line in enumerate(box.lines):
        parts.append(_text(middle, box.y + 46 + 17 * index, line, SOFT, 12.5))
    return "\n".join(parts)


def _arrow(arrow: Arrow) -> str:
    dash = ' stroke-dasharray="5 4"' if arrow.dashed else ""
    parts = [
        f'<line x1="{arrow.x1}" y1="{arrow.y1}" x2="{arrow.x2}" y2="{arrow.y2}" '
        f'stroke="{LINE}" stroke-width="1.6"{dash} marker-end="url(#tip)"/>'
    ]
    for index, line in enumerate(arrow.lines):
        parts.append(_text(arrow.at[0], arrow.at[1] + 15 * index, line, INK, 12.5))
    return "\n".join(parts)


def _text(x: int, y: int, text: str, colour: str, size: float, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x}" y="{y}" fill="{colour}" font-size="{size}" text-anchor="middle"{weight}>'
        f"{escape(text)}</text>"
    )


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("turn.svg"))
    parser.parse_args().out.write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
