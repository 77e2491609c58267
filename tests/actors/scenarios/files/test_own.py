"""What is an author's own is that of the scenario that names it, whatever others call theirs."""

import pickle
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path

import pytest
from puppet_talk import TALK, open_system

from kvactors.actors.scenarios.files.own import look_in, own_module
from kvactors.actors.scenarios.journal.records import Run
from kvactors.actors.scenarios.scenario import Scenario, resume_run

Write = Callable[..., Path]

OWN = """\
from dataclasses import dataclass

from kvactors.actors.behaviours.behaviour import AgentBehaviour
from kvactors.actors.scenarios.journal.records import Metric


@dataclass
class Kept:
    home: str = "HOME"


class Speaker(AgentBehaviour):
    def __init__(self):
        self.kept = Kept()

    async def on_message(self, message, sender):
        return f"I am of {self.kept.home}."


def own(run):
    return [Metric("of_HOME", 1, 1)]
"""


@pytest.fixture
def homes(tmp_path: Path, write: Write) -> Iterator[list[Path]]:
    """Two folders, each with a scenario and a module of one name. Afterwards Python looks where it
    did."""
    places = sys.path.copy()
    text = TALK.replace("bob: {}", 'bob: {behaviour: "own_things:Speaker"}')
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
        write(OWN.replace("HOME", folder.name), f"{folder.name}/own_things.py")
        write(f"{text}metrics: own_things:own\n", f"{folder.name}/talk.yaml")
    yield folders
    sys.path[:] = places


def _own(run: Run) -> tuple[set[str], set[str]]:
    """What a run says that is of a home: its own metrics, and what bob says."""
    names = {metric.name for metric in run.metrics if metric.name.startswith("of_")}
    turns = [t for t in run.turns if t.agent == "bob" and t.verb != "probe"]
    return names, {turn.answer for turn in turns}


def test_two_scenarios_have_modules_of_one_name(homes: list[Path], tmp_path: Path) -> None:
    for home in homes:
        with open_system(tmp_path / f"{home.name}-store") as system:
            [run] = Scenario.load(home / "talk.yaml").run(system, out=home / "out")

        assert _own(run) == ({f"of_{home.name}"}, {f"I am of {home.name}."})

    with open_system(tmp_path / "one-store") as system:
        [again] = resume_run(homes[0] / "out", system)
    assert _own(again) == ({"of_one"}, {"I am of one."})
    assert not again.failures


def test_a_scenario_has_its_own_though_another_was_loaded_since(
    homes: list[Path], tmp_path: Path
) -> None:
    for scenario, home in zip([Scenario.load(h / "talk.yaml") for h in homes], homes, strict=True):
        with open_system(tmp_path / f"{home.name}-store") as system:
            [run] = scenario.run(system, out=home / "out")

        assert _own(run) == ({f"of_{home.name}"}, {f"I am of {home.name}."})


def test_what_a_module_beside_a_file_makes_is_copied_and_pickled(homes: list[Path]) -> None:
    one, two = (own_module("own_things", [home]) for home in homes)
    kept = two.Kept("changed")

    assert one is not two
    assert pickle.loads(pickle.dumps(kept)) == deepcopy(kept) == kept != one.Kept("changed")
    assert own_module("own_things", [homes[1]]) is two


def test_a_module_in_a_package_beside_a_file_finds_what_is_beside_it(
    homes: list[Path], write: Write
) -> None:
    for home in homes:
        (home / "own_parts").mkdir()
        write(f"HOME = {home.name!r}\n", f"{home.name}/own_parts/base.py")
        write(
            "from .base import HOME\nfrom ..own_things import own\n", f"{home.name}/own_parts/a.py"
        )

    assert [own_module("own_parts.a", [home]).HOME for home in homes] == ["one", "two"]


def test_what_the_program_has_imported_itself_is_not_loaded_twice(
    homes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(homes[1])
    import own_things  # type: ignore[import-not-found]

    try:
        assert own_module("own_things", homes[1:]) is own_things
        assert own_module("own_things", homes[:1]) is not own_things
    finally:
        del sys.modules["own_things"]


def test_what_is_in_no_home_is_found_as_python_finds_it(homes: list[Path]) -> None:
    (homes[0] / "kvactors").mkdir()
    look_in(homes)

    assert own_module("kvactors.actors").__name__ == "kvactors.actors"
    assert str(homes[1]) in sys.path
    with pytest.raises(ModuleNotFoundError, match="No module named 'own_nothing'"):
        own_module("own_nothing")
