"""A talk of three that several tests play, and what plays of it are compared by."""

from dataclasses import asdict
from typing import Any

from kvactors.actors.scenarios.journal.records import Run

__all__ = ["DEALERS", "TWO", "own", "untimed"]

TWO = """\
name: two
agents: {anna: {}, bob: {}, emma: {}}
phases:
  - name: talk
    rounds: 2
    steps:
      - say: "{{ round }}: {{ heard | map(attribute='speaker') | join(' ') }}"
"""
DEALERS = """\
name: dealers
agents: {anna: {behaviour: "own_code:Dealer", asks: bob}, bob: {}, emma: {}}
phases:
  - name: talk
    rounds: 2
    steps:
      - say: "Speak, {{ round }}."
  - name: end
    steps:
      - ask: "{{ answers(agent='anna') | length }}"
"""


def untimed(run: Run) -> list[dict[str, object]]:
    """Turns, what was heard and what failed, in the order of the file."""
    records: list[Any] = [*run.turns, *run.heard, *run.failures]
    return [asdict(record) for record in records]


def own(run: Run, agent: str = "anna") -> list[str]:
    """What an agent said, apart from what its code asked it."""
    return [turn.answer for turn in run.turns if turn.agent == agent and not turn.part]
