"""Runs with the agents of a cluster: what they come to is what it is with one system."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kvactors import AgentSystem, Cluster, Sampling
from kvactors.actors.errors import AgentExists
from kvactors.actors.frontends.cli.app import app
from kvactors.actors.scenarios.files.problems import InvalidScenario
from kvactors.actors.scenarios.running.clustered import ClusterSystem
from kvactors.actors.scenarios.scenario import Scenario, compare_runs, fork_run, resume_run

Write = Callable[..., Path]

TALK = """\
name: talk
sampling: {max_tokens: 8}
parameters: {tea: any}
agents: {anna: {persona: "You are Anna."}, bob: {}}
phases:
  - name: first
    steps:
      - say: "Speak, {{ round }}."
  - name: second
    rounds: 2
    fork: {one: {tea: green}, other: {tea: black}}
    steps:
      - ask: "Do you like {{ tea }} tea?"
probes:
  - {name: who, who: anna, ask: "Who are you?", expect: "anna"}
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster.local(store=tmp_path / "store", reproducible=True) as cluster:
        yield cluster


def test_a_run_with_a_cluster_is_the_run_with_a_system_of_its_own(
    write: Write, tmp_path: Path, cluster: Cluster
) -> None:
    scenario = Scenario.load(write(TALK))

    [run] = scenario.run(ClusterSystem(cluster), out=tmp_path / "cluster")
    with AgentSystem(store=tmp_path / "own", reproducible=True) as system:
        scenario.run(system, out=tmp_path / "one")

    assert run.ended
    assert not run.failures
    assert run.header.model == "default"
    assert compare_runs(tmp_path / "cluster", tmp_path / "one") == {"seed-0": []}
    before = {agent.agent_id: agent.transcript() for agent in cluster.agents()}
    with pytest.raises(AgentExists, match="is of an earlier run"):
        scenario.run(ClusterSystem(cluster), out=tmp_path / "again")
    with pytest.raises(AgentExists, match="is of an earlier run"):
        resume_run(tmp_path / "again", ClusterSystem(cluster))
    assert {name: cluster.spawn(name).transcript() for name in before} == before


def test_one_that_was_cut_off_goes_on_with_what_its_agents_remember(
    write: Write, tmp_path: Path, cluster: Cluster
) -> None:
    scenario, seen = Scenario.load(write(TALK)), list[Any]()

    def watch(_: int, record: Any) -> None:
        seen.append(record)
        if len(seen) == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scenario.run(ClusterSystem(cluster), out=tmp_path / "cut", watch=watch)
    # As a program that is killed leaves them.
    for agent in cluster.agents():
        agent.ask("And what else?", sampling=Sampling(max_tokens=400))
    [run] = resume_run(tmp_path / "cut", ClusterSystem(cluster))
    with AgentSystem(store=tmp_path / "own", reproducible=True) as system:
        scenario.run(system, out=tmp_path / "whole")

    assert run.ended
    assert compare_runs(tmp_path / "cut", tmp_path / "whole") == {"seed-0": []}
    assert not any("what else" in agent.transcript().text for agent in cluster.agents())


def test_a_run_is_forked_at_a_step(write: Write, tmp_path: Path, cluster: Cluster) -> None:
    Scenario.load(write(TALK)).run(ClusterSystem(cluster), out=tmp_path / "first")
    before = {agent.agent_id: agent.transcript() for agent in cluster.agents()}

    [run] = fork_run(tmp_path / "first", 3, tmp_path / "second", system=ClusterSystem(cluster))

    assert run.ended
    assert {name: cluster.spawn(name).transcript() for name in before} == before
    assert len(cluster.agents()) == 2 * len(before)


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("engine.kv_bits=8", "engine.kv_bits"),
        ("phases.second.restart=true", "restart of phase 'second'"),
        ("phases.first.swap_model=another", "swap_model of phase 'first'"),
        ("model=another", "the nodes of this cluster run 'default'"),
    ],
)
def test_what_only_a_system_of_its_own_can_do_is_refused_before_anything_is_done(
    write: Write, tmp_path: Path, cluster: Cluster, setting: str, why: str
) -> None:
    scenario = Scenario.load(write(TALK), settings=[setting])

    with pytest.raises(InvalidScenario, match=why):
        scenario.run(ClusterSystem(cluster), out=tmp_path / "out")

    assert not (tmp_path / "out").exists()
    assert cluster.agents() == []


def test_the_command_names_a_cluster_that_is_not_there_and_makes_no_folder(
    write: Write, tmp_path: Path
) -> None:
    out = tmp_path / "out"

    done = CliRunner().invoke(
        app, ["run", str(write(TALK)), "--cluster", "127.0.0.1:1", "--out", str(out)]
    )

    assert done.exit_code != 0
    assert not out.exists()
