"""The README's program runs; the pages' tables name everything that there is, as it is."""

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from house import FOLDERS, ROOT, files

import kvactors
from kvactors import Agent, AgentBehaviour, AgentSystem, KvactorsError, Reply, Sampling
from kvactors.core import errors

PAGES = (
    "README.md",
    *(f"{folder}/README.md" for folder in (*FOLDERS, "tests")),
    "actors/cluster/README.md",
    "actors/frontends/server/README.md",
    "actors/scenarios/README.md",
    "actors/scenarios/results/README.md",
    "core/arena/sessions/README.md",
    "core/attention/export/README.md",
    ".github/CHANGELOG.md",
    ".github/CONTRIBUTING.md",
)
TEXT = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}
README, INTERFACE = TEXT["README.md"], TEXT["actors/README.md"]
MOST_LINES = 250
STARS: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


@pytest.mark.slow
def test_the_demo_prints_what_the_page_shows_but_for_times() -> None:
    shown = re.search(r"kvactors demo\n```\n\n```\n(.*?)```", README, re.DOTALL)
    assert shown is not None

    demo = [sys.executable, "-P", "-m", "kvactors.actors.cli", "demo"]
    printed = subprocess.run(demo, capture_output=True, text=True, check=True).stdout

    assert _without_times(printed) == _without_times(shown[1])


def _without_times(text: str) -> list[list[str]]:
    lines = re.sub(r"\d+\.\d+", "?", text).strip().splitlines()
    return [line.split() for line in lines]


def test_the_ten_line_program_remembers_when_it_is_run_again(tmp_path: Path) -> None:
    found = re.search(r"## Ten lines\n\n```python\n(.*?)```", README, re.DOTALL)
    assert found is not None

    runs = [
        subprocess.run(
            [sys.executable, "-W", "error", "-c", found[1]],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        for _ in range(2)
    ]

    assert [run.returncode for run in runs] == [0, 0], runs[0].stderr
    assert "Biscuit" in runs[0].stdout.splitlines()[0]
    for run in runs:
        said, unknown = run.stdout.splitlines()
        assert said.endswith(".")
        assert unknown.split()[-2] == "hot"
    assert (tmp_path / "memories" / "agents").is_dir()


def test_the_readme_is_short_enough_to_read() -> None:
    assert README.count("\n") <= MOST_LINES


def test_every_error_is_in_the_table() -> None:
    public = [getattr(kvactors, name) for name in kvactors.__all__]
    raised = [kind for kind in public if inspect.isclass(kind) and issubclass(kind, KvactorsError)]
    names = {kind.__name__ for kind in raised} | set(errors.__all__)

    assert set(errors.__all__) <= set(kvactors.__all__)
    # TurnError only groups two that are named.
    assert [name for name in sorted(names - {"TurnError"}) if f"`{name}`" not in INTERFACE] == []


def test_every_parameter_and_method_is_in_the_reference() -> None:
    parameters = set(inspect.signature(AgentSystem).parameters)
    methods = {
        name
        for kind in (AgentSystem, Agent)
        for name, member in vars(kind).items()
        if inspect.isfunction(member) and not name.startswith("_")
    } - {"send"}
    fields = {*Reply.__slots__, *Sampling.__slots__}

    assert [name for name in sorted(parameters) if f"`{name}`" not in INTERFACE] == []
    assert [name for name in sorted(methods) if f"`{name}(" not in INTERFACE] == []
    assert [name for name in sorted(fields) if name not in INTERFACE] == []


def signature(function: Callable[..., Any]) -> str:
    """As a reader sees it: no `self`, no types."""
    shown: list[str] = []
    for parameter in list(inspect.signature(function).parameters.values())[1:]:
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in "".join(shown):
            shown.append("*")
        text, default = STARS.get(parameter.kind, "") + parameter.name, parameter.default
        if isinstance(default, str):
            text += f"={json.dumps(default)}"
        elif default is not parameter.empty:
            text += f"={getattr(default, '__name__', repr(default))}"
        shown.append(text)
    return f"`{function.__name__}({', '.join(shown)})`"


@pytest.mark.parametrize("kind", [AgentSystem, Agent, AgentBehaviour])
def test_every_method_stands_on_the_page_with_its_signature(kind: type) -> None:
    section = INTERFACE.split(
        {AgentSystem: "## AgentSystem", Agent: "## Agent\n", AgentBehaviour: "## Behaviours"}[kind]
    )[1].split("\n## ")[0]
    signatures = [
        signature(member)
        for name, member in vars(kind).items()
        if inspect.isfunction(member) and not name.startswith("_") and name != "bind"
    ]

    assert [shown for shown in signatures if f"| {shown} |" not in section] == []


@pytest.mark.parametrize("page", PAGES)
def test_links_to_files_are_not_broken(page: str) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", TEXT[page])

    assert targets
    assert [
        target for target in targets if not (ROOT / page).parent.joinpath(target).exists()
    ] == []


def anchors(page: str) -> set[str]:
    """What a link can name on a page, as it is shown: its headings."""
    titles = re.findall(r"^#+ (.*)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES)
def test_links_to_headings_are_not_broken(page: str) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", TEXT[page]):
        there = (ROOT / page).parent.joinpath(target).resolve() if target else ROOT / page
        assert anchor in anchors(there.relative_to(ROOT).as_posix()), f"{target}#{anchor}"


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_room_stands_on_the_page_of_its_folder(folder: str) -> None:
    rooms = {
        path.parent.relative_to(ROOT / folder).parts[0]
        for path in files(folder)
        if path.parent != ROOT / folder
    }

    assert [room for room in sorted(rooms) if f"]({room})" not in TEXT[f"{folder}/README.md"]] == []


def test_every_page_is_found_from_the_readme() -> None:
    assert [page for page in PAGES[1:] if f"]({page})" not in README] == []


def shipped(path: str) -> bool:
    """Whether MANIFEST.in takes a file into the source archive, beside the package."""
    for line in (ROOT / "MANIFEST.in").read_text(encoding="utf-8").splitlines():
        command, *patterns = line.split()
        if command == "include" and path in patterns:
            return True
        if command in ("graft", "recursive-include") and path.startswith(f"{patterns[0]}/"):
            return True
    return path == "README.md"


@pytest.mark.parametrize("page", PAGES)
def test_pages_ship_with_the_source_and_with_what_they_show(page: str) -> None:
    shown = re.findall(r"!\[[^]]*\]\(([^)]+)\)", TEXT[page])
    pictures = [(ROOT / page).parent.joinpath(picture).resolve() for picture in shown]

    assert shipped(page)
    assert [path for path in pictures if not shipped(path.relative_to(ROOT).as_posix())] == []


def test_the_versions_on_the_page_are_those_of_the_code() -> None:
    rows = re.findall(
        r"^\| [^|]+ \| ([\d.]+) \| ([\d., ]+) \| `(\w+)` in \[`([\w/]+)\.py`\]",
        TEXT["persistence/README.md"],
        re.MULTILINE,
    )

    assert len(rows) == 9
    for writes, reads, name, path in rows:
        place = path if path.startswith("core/") else f"persistence/{path}"
        module = import_module("kvactors." + place.replace("/", "."))
        assert str(getattr(module, name)) == writes, place
        assert reads == ", ".join(map(str, getattr(module, "READABLE_VERSIONS", [writes]))), place
