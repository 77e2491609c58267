"""The README's program runs, and its tables name everything that there is."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import kvactors.actors
from kvactors.actors import Agent, AgentSystem, KvactorsError, Reply, Sampling
from kvactors.core import errors

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


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
    assert "Biscuit" in runs[0].stdout
    assert "hot" in runs[1].stdout
    assert (tmp_path / "memories" / "agents").is_dir()


def test_every_error_is_in_the_table() -> None:
    public = [getattr(kvactors.actors, name) for name in kvactors.actors.__all__]
    raised = [kind for kind in public if inspect.isclass(kind) and issubclass(kind, KvactorsError)]
    names = {kind.__name__ for kind in raised} | set(errors.__all__)

    assert set(errors.__all__) <= set(kvactors.actors.__all__)
    # TurnError only groups two that are named.
    assert [name for name in sorted(names - {"TurnError"}) if f"`{name}`" not in README] == []


def test_every_parameter_and_method_is_in_the_reference() -> None:
    parameters = set(inspect.signature(AgentSystem).parameters)
    methods = {
        name
        for kind in (AgentSystem, Agent)
        for name, member in vars(kind).items()
        if inspect.isfunction(member) and not name.startswith("_")
    } - {"send"}
    fields = {*Reply.__slots__, *Sampling.__slots__}

    assert [name for name in sorted(parameters) if f"`{name}`" not in README] == []
    assert [name for name in sorted(methods) if f"`{name}(" not in README] == []
    assert [name for name in sorted(fields) if name not in README] == []


def test_links_to_files_are_not_broken() -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)

    assert [
        target for target in targets if not Path(__file__).parents[2].joinpath(target).exists()
    ] == []
