"""A run that is killed goes on where it was, and says what it would have said.

`KVACTORS_FULL=1` kills a run of 200 turns at 100 moments.
"""

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from kvactors.actors import AgentSystem
from kvactors.actors.scenarios.diff import Difference, differences
from kvactors.actors.scenarios.journal.file import Record
from kvactors.actors.scenarios.journal.reading import read_journal, read_run
from kvactors.actors.scenarios.journal.records import Turn
from kvactors.actors.testing import FaultyModel

FULL = bool(os.environ.get("KVACTORS_FULL"))
CHILD = Path(__file__).parent / "scenario_child.py"
LABEL = "seed-5"
SCENARIO = """\
name: lives
seeds: 5
sampling: {max_tokens: 4, temperature: 0.9}
agents:
  anna: {persona: "You are Anna."}
  bob: {}
  emma: {}
  carl: {behaviour: "lives_code:Carl", asks: emma}
phases:
  - name: talk
    rounds: ROUNDS
    steps:
      - say: "{{ round }} {{ heard | length }}"
        to: [anna, bob]
  - name: choose
    order: together
    steps:
      - choose: ["left", "right"]
        prompt: "{{ answers(agent='anna') | length }}"
probes:
  - {name: who, ask: "Who?", expect: "x"}
"""
CODE = """\
from kvactors.actors.behaviours.behaviour import AgentBehaviour


class Carl(AgentBehaviour):
    times = 0

    async def on_message(self, message, sender):
        self.times += 1
        reply = await self.think(message.text, choices=message.choices)
        if message.choices:
            return reply.text
        other = await self.ask("emma", f"What of {reply.text}?")
        await self.send("emma", f"{self.times}.")
        return f"{self.times}: {other.text}"
"""
ROUNDS = 48 if FULL else 3
KILLS = 100 if FULL else 2


def child(scenario: Path, out: Path, kind: str = "none", at: int = 0) -> int:
    """The status of a process that ran it, or went on with it, until it ended or was killed."""
    command = [sys.executable, str(CHILD), str(scenario), str(out), kind, str(at)]
    done = subprocess.run(command, timeout=280, capture_output=True, text=True, check=False)
    assert done.returncode in (0, -9), done.stderr
    return done.returncode


def finished(scenario: Path, out: Path) -> Path:
    """The folder of the scenario's run that nobody killed."""
    assert child(scenario, out) == 0
    return out


def memories(store: Path) -> dict[str, tuple[int, ...]]:
    """What each agent of a store remembers."""
    with AgentSystem(FaultyModel(), store) as system:
        names = [known.agent_id for known in system.known_agents()]
        return {name: system.spawn(name).transcript().token_ids for name in names}


def asked_in_store(store: Path) -> Counter[str]:
    """How many turns each agent was asked, by its ledger."""
    with AgentSystem(FaultyModel(), store) as system:
        names = [known.agent_id for known in system.known_agents()]
        return Counter(
            name.partition("/")[2]
            for name in names
            for turn in system.spawn(name).transcript().turns
            if turn.asked
        )


def asked_in(records: list[Record]) -> Counter[str]:
    """How many turns each agent was asked and remembers, by the journal."""
    turns = [record for record in records if isinstance(record, Turn)]
    return Counter(turn.agent for turn in turns if turn.verb != "probe" and turn.cache)


def at_most_one_each(ledger: Counter[str], journal: Counter[str]) -> bool:
    """Whether no agent was asked more than one turn that the journal has not, or one less."""
    return all(0 <= ledger[name] - journal[name] <= 1 for name in ledger | journal)


def parts(one: Path, other: Path) -> list[Difference]:
    """Where two runs part."""
    assert read_run(journal(other)).ended
    return list(differences(read_run(journal(one)), read_run(journal(other))))


def journal(out: Path) -> Path:
    return out / "runs" / f"{LABEL}.journal"


@pytest.mark.slow
@pytest.mark.timeout(3600 if FULL else 300)
def test_a_killed_run_goes_on_does_nothing_twice_and_says_the_same(tmp_path: Path) -> None:
    scenario, out = tmp_path / "scenario.yaml", tmp_path / "run"
    scenario.write_text(SCENARIO.replace("ROUNDS", str(ROUNDS)), encoding="utf-8")
    (tmp_path / "lives_code.py").write_text(CODE, encoding="utf-8")
    reference = finished(scenario, tmp_path / "whole")
    records = len(read_journal(journal(reference))[1])
    random, kills, kept = Random(1), 0, list[Record]()

    while kills < KILLS:
        kind, most = ("disk", 3 * records) if kills % 2 else ("record", records // 2)
        if child(scenario, out, kind, random.randint(1, max(1, most // (1 + kills % 8)))) == 0:
            assert not parts(reference, out)
            shutil.rmtree(out)
            shutil.rmtree(tmp_path / "run-store")
            kept = []
            continue
        kills += 1
        if journal(out).exists():
            now = read_journal(journal(out))[1]
            assert now[: len(kept)] == kept
            assert at_most_one_each(asked_in_store(tmp_path / "run-store"), asked_in(now))
            kept = now

    finished(scenario, out)
    assert not parts(reference, out)
    turns = [record for record in read_journal(journal(out))[1] if isinstance(record, Turn)]
    steps = [(turn.step, turn.part) for turn in turns]
    assert len(steps) == len(set(steps))
    assert memories(tmp_path / "run-store") == memories(tmp_path / "whole-store")
