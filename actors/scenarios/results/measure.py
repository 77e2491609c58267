"""What agents remember, and what that costs, as numbers. Pure, over records: any thread.

    recall       share of probes answered as expected, of what was told so many phases ago
    refusal      share of probes of what was never told that were refused
    consistency  share of questions asked again whose answer is the one of before
    tokens_*     prefilled (by turns, and by hearing others), reused, generated

The working memory of [paper, 3.5], counted: what the paper shows by cases.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean
from typing import Any

from kvactors.actors.scenarios.journal.records import Heard, Metric, Turn

__all__ = ["SHARES", "measure"]

# Metrics that are shares of so many answers; of the others a number is all there is.
SHARES = ("recall", "refusal", "consistency")
Cut = tuple[str, ...]
ALL: Cut = ()
CUTS: tuple[Cut, ...] = (ALL, ("phase",), ("agent",), ("branch",))
DISTANCES: tuple[Cut, ...] = (("distance",), ("phase", "distance"))
# What is asked in order to be answered alike; what is said may differ each time.
QUESTIONS = ("ask", "choose", "probe")


def measure(turns: Sequence[Turn], heard: Sequence[Heard]) -> tuple[Metric, ...]:
    """Every metric of one run, of all of it and by phase, agent, branch and distance."""
    asked = [turn for turn in turns if turn.verb == "probe" and turn.right is not None]
    told = [(turn, bool(turn.right)) for turn in asked if turn.expected is not None]
    never = [(turn, bool(turn.right)) for turn in asked if turn.expected is None]
    return (
        *_shares("recall", told, (*CUTS, *DISTANCES)),
        *_shares("refusal", never, CUTS),
        *_shares("consistency", list(_repeated(turns)), CUTS),
        *_costs(turns, heard),
    )


def _shares(
    name: str, judged: Sequence[tuple[Turn, bool]], cuts: Iterable[Cut]
) -> Iterator[Metric]:
    for cut in cuts:
        groups: dict[tuple[Any, ...], list[bool]] = defaultdict(list)
        for turn, good in judged:
            groups[tuple(getattr(turn, field) for field in cut)].append(good)
        if cut == ("branch",) and len(groups) < 2:
            continue
        for key, found in groups.items():
            if None not in key:
                yield Metric(name, fmean(found), len(found), **dict(zip(cut, key, strict=True)))


def _repeated(turns: Sequence[Turn]) -> Iterator[tuple[Turn, bool]]:
    """Questions of the file that an agent was asked before, and whether the answer is that one's. A
    branch goes on with what was answered before it began."""
    before: dict[tuple[str, str, str], str] = {}
    for turn in sorted(turns, key=lambda turn: turn.step):
        if turn.verb not in QUESTIONS or turn.part:
            continue
        answer = " ".join(turn.answer.casefold().split())
        for branch in _lineage(turn.branch):
            if (earlier := before.get((turn.agent, turn.prompt, branch))) is not None:
                yield turn, earlier == answer
                break
        before[turn.agent, turn.prompt, turn.branch] = answer


def _lineage(branch: str) -> Iterator[str]:
    """A branch, the one that it began in, and so on to the trunk."""
    while branch:
        yield branch
        branch = branch.rpartition("/")[0]
    yield ""


def _costs(turns: Sequence[Turn], heard: Sequence[Heard]) -> Iterator[Metric]:
    """Tokens of agents in phases, and of all; `count` turns, and texts that were heard."""
    columns: dict[str, Sequence[Turn | Heard]] = {
        "prefilled": (*turns, *heard),
        "reused": turns,
        "generated": turns,
    }
    for name, records in columns.items():
        if not records:
            continue
        groups: dict[tuple[str, str], list[int]] = defaultdict(list)
        for record in records:
            groups[record.agent, record.phase].append(getattr(record, f"{name}_tokens"))
        every = [tokens for found in groups.values() for tokens in found]
        yield Metric(f"tokens_{name}", sum(every), len(every))
        for (agent, phase), found in groups.items():
            yield Metric(f"tokens_{name}", sum(found), len(found), agent, phase)
