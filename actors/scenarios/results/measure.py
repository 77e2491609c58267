"""What agents remember, and what that costs, as numbers. Pure, over records: any thread.

    recall       share of probes answered as expected, of what was told so many phases ago
    refusal      share of probes of what was never told that were refused
                 (a probe that failed, as a context is full, is neither)
    consistency  share of questions asked again whose answer is the one of before
    tokens_*     prefilled (by turns, and by hearing others), reused, generated

The working memory of [paper, 3.5], counted: what the paper shows by cases.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean
from typing import Any, TypeVar

from kvactors.actors.scenarios.journal.records import Failure, Heard, Metric, Turn

__all__ = ["COSTS", "SHARES", "measure"]

# Metrics that are shares of so many answers; of the others a number is all there is.
SHARES = ("recall", "refusal", "consistency")
# Metrics of tokens, and the field that each sums up.
COSTS = {
    "tokens_prefilled": "prefilled_tokens",
    "tokens_reused": "reused_tokens",
    "tokens_generated": "generated_tokens",
}
Cut = tuple[str, ...]
_Value = TypeVar("_Value")
ALL: Cut = ()
CUTS: tuple[Cut, ...] = (ALL, ("phase",), ("agent",), ("branch",))
DISTANCES: tuple[Cut, ...] = (("distance",), ("phase", "distance"))
COST_CUTS: tuple[Cut, ...] = (ALL, ("agent", "phase"), ("branch",))
# What is asked in order to be answered alike; what is said may differ each time.
QUESTIONS = ("ask", "choose", "probe")


def measure(
    turns: Sequence[Turn], heard: Sequence[Heard], failures: Sequence[Failure]
) -> tuple[Metric, ...]:
    """Every metric of one run, of its `turns`, of what was `heard` and of its `failures`: of all of
    it and by phase, agent, branch and distance."""
    ended: tuple[Turn | Failure, ...] = (*turns, *failures)
    probes = [probe for probe in ended if probe.right is not None]
    told = [(probe, bool(probe.right)) for probe in probes if probe.expected is not None]
    never = [(probe, bool(probe.right)) for probe in probes if probe.expected is None]
    return (
        *_shares("recall", told, (*CUTS, *DISTANCES)),
        *_shares("refusal", never, CUTS),
        *_shares("consistency", list(_repeated(turns)), CUTS),
        *_costs(turns, heard),
    )


def _shares(
    name: str, judged: Sequence[tuple[Turn | Failure, bool]], cuts: Iterable[Cut]
) -> Iterator[Metric]:
    for cut in cuts:
        for of, found in _groups(judged, cut):
            yield Metric(name, fmean(found), len(found), **of)


def _groups(
    values: Iterable[tuple[Turn | Heard | Failure, _Value]], cut: Cut
) -> Iterator[tuple[dict[str, Any], list[_Value]]]:
    """Values of records, together by a `cut`: by branch only where there are any."""
    groups: dict[tuple[Any, ...], list[_Value]] = defaultdict(list)
    for record, value in values:
        groups[tuple(getattr(record, field) for field in cut)].append(value)
    if cut == ("branch",) and set(groups) == {("",)}:
        return
    for key, found in groups.items():
        if None not in key:
            yield dict(zip(cut, key, strict=True)), found


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
    """Tokens of all, of agents in phases and of branches; `count` turns, and texts that were
    heard."""
    for name, field in COSTS.items():
        records: Sequence[Turn | Heard] = turns
        if field == "prefilled_tokens":
            records = (*turns, *heard)
        tokens = [(record, getattr(record, field)) for record in records]
        for cut in COST_CUTS:
            for of, found in _groups(tokens, cut):
                yield Metric(name, sum(found), len(found), **of)
