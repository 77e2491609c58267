"""A short talk with a probe, and a system whose agents say how much they were told."""

from pathlib import Path

from kvactors.actors import AgentSystem
from kvactors.actors.scenarios.journal.records import Run
from kvactors.actors.testing import PuppetModel, use_puppet

__all__ = ["TALK", "answers", "open_system", "reply"]

TALK = """\
name: talk
sampling: {max_tokens: 8}
parameters: {mood: calm}
agents: {anna: {persona: "You are Anna."}, bob: {}}
phases:
  - name: first
    steps:
      - say: "Speak, {{ round }}."
  - name: second
    rounds: 2
    steps:
      - ask: "What was said, {{ mood }}?"
probes:
  - {name: who, who: anna, ask: "Who are you?", expect: "anna"}
"""


def reply(said: str) -> str:
    """The puppets' script: how much they have been told."""
    return f"I know {len(said)}."


def open_system(store: Path) -> AgentSystem:
    puppet = PuppetModel(reply)
    made = AgentSystem(puppet, store, deterministic=True)
    use_puppet(made, puppet)
    return made


def answers(run: Run) -> list[str]:
    return [turn.answer for turn in run.turns]
