"""The scenarios that are shipped, played at small size by the model that is shipped."""

import re
from pathlib import Path

import pytest

from kvactors.actors.scenarios.journal.records import Run
from kvactors.actors.scenarios.scenario import Scenario

FOLDER = Path(__file__).parents[3] / "examples/scenarios"
SMALL = {
    "dilemma": [],
    "gossip": [],
    "interrogation": ["agents.witness.count=1", "phases.evening.restart=false"],
    "market": ["agents.trader.count=3", "phases.trading.rounds=2", "probes.purse.who=trader-1"],
    "village": ["agents.person.count=20"],
    "public_goods": ["seeds=1..2", "phases.game.rounds=2", "parameters.multiplier=[1.2, 2.4]"],
    "debate": [],
}


def played(name: str, out: Path) -> list[Run]:
    """Its runs, all of which have ended."""
    runs = Scenario.load(FOLDER / f"{name}.yaml", settings=SMALL[name]).run(out=out / name)
    assert all(run.ended and not run.failures for run in runs)
    return runs


def share(run: Run, name: str) -> float:
    """A metric of all of a run."""
    return next(m.value for m in run.metrics if m.name == name and m.phase is m.agent is None)


def test_every_shipped_scenario_is_tested() -> None:
    assert {path.stem for path in FOLDER.glob("*.yaml")} == {*SMALL}


@pytest.mark.parametrize("name", SMALL)
def test_a_full_scenario_is_well_formed(name: str) -> None:
    assert Scenario.load(FOLDER / f"{name}.yaml").words.about


def test_the_page_shows_a_scenario_that_runs(tmp_path: Path) -> None:
    page = (FOLDER.parents[1] / "actors/scenarios/README.md").read_text(encoding="utf-8")
    shown = re.search(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert shown is not None
    (tmp_path / "talk.yaml").write_text(shown[1], encoding="utf-8")

    [run] = Scenario.load(tmp_path / "talk.yaml").run(out=tmp_path / "out")

    recall = {m.phase: m.value for m in run.metrics if m.name == "recall" and m.distance is None}
    assert recall["morning"] == 1
    assert len(run.turns) == 7


@pytest.mark.slow
def test_suspects_keep_what_they_know_through_a_restart(tmp_path: Path) -> None:
    [run] = played("dilemma", tmp_path)

    assert (share(run, "recall"), share(run, "refusal")) == (1, 1)
    assert [event.kind for event in run.events].count("process") == 2
    deals = [turn for turn in run.turns if turn.name == "deal"]
    assert [(turn.agent, set(turn.scores or ())) for turn in deals] == [
        ("marco", {"silent", "confess"}),
        ("emma", {"silent", "confess"}),
    ]


@pytest.mark.slow
def test_suspects_ask_in_the_yard_for_what_the_other_has_said_there(tmp_path: Path) -> None:
    [run] = played("dilemma", tmp_path)

    told = {h.agent: h.step for h in run.heard if h.phase == "yard" and h.speaker != h.agent}
    asked = [turn for turn in run.turns if (turn.phase, turn.verb) == ("yard", "ask")]
    assert [(turn.agent, turn.answer) for turn in asked] == [
        ("emma", "Frank likes fish."),
        ("marco", "Peter lives in Rome."),
    ]
    assert all(turn.step > told[turn.agent] for turn in asked)
    assert all(len(turn.heard) == 1 for turn in asked)


def test_gossip_is_known_to_who_heard_it(tmp_path: Path) -> None:
    [run] = played("gossip", tmp_path)

    probes = {(turn.name, turn.agent): turn for turn in run.turns if turn.verb == "probe"}
    assert all(probes["own", f"g{n}"].right for n in range(1, 9))
    assert all(probes["neighbour", f"g{n}"].right for n in range(1, 9))
    assert all(probes["second_hand", f"g{n}"].right for n in range(1, 9))
    assert share(run, "refusal") == 1
    assert all(heard.speaker for heard in run.heard)


def test_gossip_passes_on_what_was_heard_and_not_what_is_ones_own(tmp_path: Path) -> None:
    [run] = played("gossip", tmp_path)

    facts = {h.agent: h.text for h in run.heard if h.phase == "news" and h.speaker == h.agent}
    passed = {h.agent: h.text for h in run.heard if h.phase == "rumour" and h.speaker != h.agent}
    assert passed == {f"g{n}": facts[f"g{(n - 3) % 8 + 1}"] for n in range(1, 9)}


def test_witnesses_recall_every_phase(tmp_path: Path) -> None:
    [run] = played("interrogation", tmp_path)

    by_distance = {m.distance: m.value for m in run.metrics if m.name == "recall" and m.distance}
    assert by_distance == {1: 1, 2: 1, 3: 1}
    assert share(run, "refusal") == 1


def test_traders_choose_with_scores(tmp_path: Path) -> None:
    [run] = played("market", tmp_path)

    orders = [turn for turn in run.turns if turn.verb == "choose"]
    assert len(orders) == 6
    assert all(turn.scores and set(turn.scores) == {"buy", "sell", "wait"} for turn in orders)


def test_news_goes_along_the_street(tmp_path: Path) -> None:
    [run] = played("village", tmp_path)

    said = {turn.agent: turn for turn in run.turns if turn.verb == "say"}
    assert len(said) == sum(turn.verb == "say" for turn in run.turns) == 20
    first = {agent for agent, turn in said.items() if turn.round == 1}
    assert first == {"person-1", "person-11"}
    way = [min(abs(n - 1), abs(n - 11)) for n in range(1, 21)]
    assert [said[f"person-{n}"].round - 1 for n in range(1, 21)] == way
    assert said["person-1"].heard == ()
    assert said["person-6"].heard == (said["person-5"].step, said["person-7"].step)
    assert {turn.answer for turn in said.values()} == {"The candle costs 90 dollars."}
    assert share(run, "recall") == 1


def test_a_game_over_seeds_and_parameters(tmp_path: Path) -> None:
    runs = played("public_goods", tmp_path)

    assert [run.header.parameters["multiplier"] for run in runs] == [1.2, 2.4, 1.2, 2.4]
    assert "multiplier" in (tmp_path / "public_goods/summary.csv").read_text()


def test_one_debate_has_two_endings(tmp_path: Path) -> None:
    [run] = played("debate", tmp_path)

    assert share(run, "recall") == 1
    answers = {turn.branch: turn.answer for turn in run.turns if turn.name == "price"}
    assert answers["cheap"] != answers["dear"]
