"""A conversation of ten turns, end to end: with a memory, and without a cache.

    python -m kvactors.bench.experiments.multi_turn [--quick] [--model M] [--plot out.png]

Regime: each turn asks 200 tokens and is answered with 64 [write-up, 5.4]. kvactors: the agent's KV
is in memory, or between turns on disk alone, in a system started anew for each. mlx-lm: in a
process of its own, all that was said is prefilled in each turn. Everybody continues what it
answered itself. Medians of whole conversations.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from kvactors.bench.experiments.experiment import Row, begin, figure
from kvactors.bench.experiments.uncached import Turn, Turns, uncached
from kvactors.bench.peer_process import in_its_own_process
from kvactors.bench.setup import Setup, answer

__all__ = ["main"]

TURNS, ASKED, DECODED = 10, 200, 64
# What is asked, turn by turn.
Script = Sequence[list[int]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table and a JSON line, draw if asked to."""
    run = begin("multi_turn", __doc__, arguments)
    setup, scale = run.setup, run.setup.scale
    decoded = min(DECODED, 2 * scale.decoded)
    script = [setup.prompt(scale.tokens(ASKED), n) for n in range(scale.number(TURNS))]
    whole = [token for asked in script for token in asked]
    with in_its_own_process(setup.source, uncached, whole) as theirs:
        ways: dict[str, Callable[[], list[Turn]]] = {
            "hot": lambda: _hot(setup, script, decoded),
            "warm": lambda: _warm(setup, script, decoded),
            "mlx-lm": lambda: _uncached(theirs, script, decoded),
        }
        found: dict[str, list[list[Turn]]] = {name: [] for name in ways}
        for _ in range(scale.runs):
            for name, act in ways.items():
                found[name].append(act())
    rows = [_row(turn, found, len(script[0]) + decoded) for turn in range(len(script))]
    run.show(f"Turns of {len(script[0])} tokens, answers of {decoded}.", rows)
    if run.plot is not None:
        figure(run.plot, lambda axes: _draw(axes, rows))
    run.end(rows, decoded=decoded)


def _hot(setup: Setup, script: Script, decoded: int) -> list[Turn]:
    with setup.system() as system:
        agent = _warmed_up(system)
        return [_turn(answer(agent, asked, decoded)) for asked in script]


def _warm(setup: Setup, script: Script, decoded: int) -> list[Turn]:
    turns = []
    with TemporaryDirectory(prefix="kvactors-bench-") as folder:
        for number, asked in enumerate(script):
            with setup.system(store=Path(folder)) as system:
                reply = answer(_warmed_up(system), asked, decoded)
                reply.cached.get()
            assert reply.cache == ("warm" if number else "cold")
            turns.append(_turn(reply))
    return turns


def _warmed_up(system: Any) -> Any:
    """An agent in a system whose first turn, which pays for kernels and buffers, is another's."""
    answer(system.spawn("first"), [1] * 64)
    return system.spawn("reader")


def _turn(reply: Any) -> Turn:
    return Turn(reply.timing.first_token, reply.timing.total, reply.token_ids)


def _uncached(theirs: Turns, script: Script, decoded: int) -> list[Turn]:
    said: list[int] = []
    turns = []
    for asked in script:
        said += asked
        turns.append(theirs(said, decoded))
        said += turns[-1].tokens
    return turns


def _row(turn: int, found: dict[str, list[list[Turn]]], step: int) -> Row:
    hot, warm, other = (median(run[turn].total_s for run in runs) for runs in found.values())
    return {
        "turn": turn + 1,
        "tokens": (turn + 1) * step,
        "hot_s": hot,
        "warm_s": warm,
        "mlx-lm_s": other,
        "mlx-lm/hot": other / hot,
        "mlx-lm/warm": other / warm,
    }


def _draw(axes: Any, rows: Sequence[Row]) -> None:
    for name in ("hot", "warm", "mlx-lm"):
        turns = [row["turn"] for row in rows]
        axes.plot(turns, [row[f"{name}_s"] for row in rows], marker="o", label=name)
    axes.set(xlabel="turn", ylabel="s", ylim=(0, None), title="a turn, end to end")
    axes.legend()


if __name__ == "__main__":
    main()
