"""The stress test finds what it is there for, and the system withstands a little of it."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from samples import FULL
from typer.testing import CliRunner
from waiting import PATIENCE, eventually

from kvactors.actors.frontends.cli.app import app
from kvactors.actors.frontends.cli.stress import explore, never_happened
from kvactors.actors.frontends.console.child import child_command
from kvactors.actors.frontends.stress.oracle import replay_alone
from kvactors.actors.frontends.stress.prompts import misforked, secret
from kvactors.actors.frontends.stress.table import as_markdown
from kvactors.actors.frontends.stress.workload import Stress
from kvactors.core.conversation.turn import Turn
from kvactors.core.errors import InvalidConfig


@pytest.mark.slow
def test_a_short_run_with_every_fault_violates_nothing(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    # The least in which a process is killed and another one has time to go on.
    minutes = "1" if FULL else "0.35"
    arguments = ["--agents", "6", "--minutes", minutes, "--faults", "all", "--seed", "3"]

    ended = CliRunner().invoke(app, ["stress", *arguments, "--report", str(report)])

    assert ended.exit_code == 0, ended.output
    found = json.loads(report.read_text())
    assert found["violations"] == []
    assert found["replayed_turns"] > 0
    assert found["kills"] >= 1
    assert f"| turns taken again alone | {found['replayed_turns']} |" in as_markdown(found)


@pytest.mark.slow
def test_a_seed_may_be_negative() -> None:
    short = ["--agents", "2", "--minutes", "0.01"]

    ended = CliRunner().invoke(app, ["stress", *short, "--seed", "-1"])

    assert ended.exit_code == 0, ended.output


@pytest.mark.slow
def test_ctrl_c_waits_for_the_process_that_has_the_store_open(tmp_path: Path) -> None:
    command = child_command("stress", "--agents", 2, "--minutes", 0.1, "--store", tmp_path / "new")
    with subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True) as process:
        assert process.stderr is not None
        eventually((tmp_path / "new/store/agents").exists)

        # It alone: the other one goes on for as long as it was told to.
        process.send_signal(signal.SIGINT)

        status = process.wait(PATIENCE)
        os.set_blocking(process.stderr.fileno(), False)
        left = process.stderr.read()
        if left is None:  # Somebody else could still write there.
            os.killpg(process.pid, signal.SIGKILL)
    assert (status, left) == (130, b"")


@pytest.mark.slow
def test_interleavings_of_some_seeds_violate_nothing() -> None:
    assert explore("1..3")


def test_a_report_is_a_table_too() -> None:
    report = {"minutes": 1, "agents": 6, "seed": 3, "kills": 2, "replayed_turns": 4}
    report |= {"most_memory": 0.9, "worst_wait": 1.26, "violations": ["x"]}  # type: ignore[dict-item]
    report |= {"never_happened": ["disk", "kill"]}  # type: ignore[dict-item]

    lines = as_markdown({**report, "counts": {"ask": 5, "observe": 2, "stop": 7}}).splitlines()

    rows = ("seed | 3", "asked and observed | 7", "ended: stop | 7", "worst wait, s | 1.3")
    assert {
        f"| {row} |"
        for row in (*rows, "faults that never happened | disk, kill", "**violations** | 1")
    } <= set(lines)


def test_the_oracle_notices_a_token_that_was_not_said_alone() -> None:
    def answer(*tokens: int) -> Turn:
        return Turn("assistant", "", tokens, "", True, "length")

    prompt = Turn("user", "", (5, 6, 7), "", True)
    _, [wrong] = replay_alone([("a", (prompt, answer(1, 1, 1, 1)))])
    said = tuple(map(int, wrong.split("alone is (")[1].rstrip(")").split(", ")))

    assert replay_alone([("a", (prompt, answer(*said)))]) == (1, [])


def test_no_two_agents_have_one_secret() -> None:
    names = [f"agent {number}{fork}" for number in range(1000) for fork in ("", "+")]

    secrets = [tuple(secret(name)) for name in names]

    assert len(set(secrets)) == len(names)
    assert {token for each in secrets for token in each} <= set(range(1, 128))


def test_a_fork_that_lost_its_beginning_or_what_it_was_told_is_a_violation() -> None:
    child, parent = "agent 0+", (*secret("agent 0"), 7)
    whole, other = (*parent, *secret(child)), (*parent, *secret("agent 0"))

    assert list(misforked(child, whole, parent, told=True)) == []
    assert list(misforked(child, parent, parent, told=False)) == []
    assert list(misforked(child, whole[1:], parent, told=True)) == [
        "agent 0+: does not begin as its parent"
    ]
    for tokens in (parent, other, (*whole, 7)):
        assert list(misforked(child, tokens, parent, told=True)) == [
            "agent 0+: does not end with what it was told"
        ]


def test_prompts_of_another_agent_or_out_of_order_are_violations(tmp_path: Path) -> None:
    stress = Stress(1, 2, frozenset(), tmp_path / "store")
    agent, other = (stress.system.spawn(f"agent {number}") for number in range(2))
    stress.ask(agent)
    stress.settle()
    stress.check_transcripts()
    assert stress.violations == []

    first = agent.transcript().turns[0]
    agent.ask(list(first.token_ids)).get(timeout=60)
    other.ask(list(first.token_ids)).get(timeout=60)
    stress.check_transcripts()
    stress.close()

    assert [violation.split(":")[0] for violation in stress.violations] == ["agent 0", "agent 1"]


def test_what_faults_really_raised_is_counted(tmp_path: Path) -> None:
    # By this seed each of the two begins once.
    stress = Stress(16, 4, frozenset({"model", "disk"}), tmp_path / "store", deterministic=True)
    assert stress.status()["counts"] == {"raised_disk": 0, "rebuilds": 0}

    for _ in range(50):
        stress.act()
    stress.settle()
    counts = stress.status()["counts"]
    stress.close()

    assert (counts["fault_model"], counts["raised_model"]) == (1, 1)
    assert (counts["fault_disk"], counts["raised_disk"] > 1) == (1, True)


def test_a_part_that_may_be_killed_says_that_the_device_was_lost(tmp_path: Path) -> None:
    # By this seed it is, once.
    stress = Stress(1, 4, frozenset({"device"}), tmp_path / "store", deterministic=True)
    for _ in range(50):
        stress.act()
    stress.settle()

    state = {"faults": ["device", "kill"], "kills": 1, **stress.status()}
    stress.close()

    assert never_happened(state) == []


def test_an_agent_that_began_anew_lost_nothing(tmp_path: Path) -> None:
    stress = Stress(1, 1, frozenset(), tmp_path / "store", tmp_path / "log")
    agent = stress.system.spawn("agent 0")
    for _ in range(3):
        stress.ask(agent)
    stress.settle()
    stress.forget(agent)

    stress.check_log(tmp_path / "log")
    stress.close()

    assert stress.violations == []


def test_a_durable_turn_that_is_gone_is_a_violation(tmp_path: Path) -> None:
    stress = Stress(1, 2, frozenset(), tmp_path / "store", tmp_path / "log")
    for _ in range(30):
        stress.act()
    stress.settle()
    stress.check_log(tmp_path / "log")
    assert stress.violations == []
    assert (tmp_path / "log").read_text()

    agent = stress.system.spawn("agent 0")
    stress.ask(agent)
    stress.settle()
    agent.rewind(1).get(timeout=60)
    stress.check_log(tmp_path / "log")
    stress.close()

    assert stress.violations == ["agent 0: lost a durable turn"]


@pytest.mark.parametrize("seeds", ["a", "1..b", ".."])
def test_seeds_that_are_no_numbers_are_refused(seeds: str) -> None:
    with pytest.raises(InvalidConfig):
        explore(seeds)


@pytest.mark.parametrize("minutes", ["nan", "inf"])
def test_a_run_that_would_never_end_is_refused(minutes: str) -> None:
    ended = CliRunner().invoke(app, ["stress", "--minutes", minutes, "--faults", "none"])

    assert ended.exit_code == 2
    assert "--minutes" in ended.stderr


def test_faults_that_nobody_knows_are_refused() -> None:
    ended = CliRunner().invoke(app, ["stress", "--faults", "water"])

    assert ended.exit_code == 2
