"""The mutants can be made, and who runs them tells the dead from the living."""

from pathlib import Path

import pytest
from mutants import ROOT, Mutant, Workshop, chosen, main, read_mutants

HALVES = "def half(n):\n    return n // 2\n"
TESTS = """
from halves import half

def test_four():
    assert half(4) == 2

def test_zero():
    assert half(0) == 0
"""


# Each runs pytest on a repository of its own.
runs = pytest.mark.slow


def a_mutant(title: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(
        title, "src/halves.py", old, new, tuple(f"tests/test_halves.py{t}" for t in tests)
    )


KILLED = a_mutant("thirds", "n // 2", "n // 3", "")
SURVIVOR = a_mutant("rounded up", "n // 2", "-(-n // 2)", "")
ELSEWHERE = a_mutant("a third", "n // 3", "n", "")
AMBIGUOUS = a_mutant("another name", "n", "m", "")
UNTESTED = a_mutant("not there", "n // 2", "n", "::test_nothing")
BROKEN = a_mutant("no Python", "return", "retrun", "")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository of one function and two tests."""
    for name, text in {"src/halves.py": HALVES, "tests/test_halves.py": TESTS}.items():
        path = tmp_path / "repository" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    return tmp_path / "repository"


def test_each_mutant_changes_one_place_and_its_tests_are_there() -> None:
    every = read_mutants()

    assert len(every) >= 40
    assert {mutant.file.partition("/")[0] for mutant in every} == {"actors", "core", "persistence"}
    assert len({mutant.title for mutant in every}) == len(every)
    for mutant in every:
        assert mutant.applied(ROOT) != (ROOT / mutant.file).read_text(encoding="utf-8"), mutant
        assert mutant.killed_by, mutant
        for test in mutant.killed_by:
            path, _, name = test.partition("::")
            assert (ROOT / path).exists(), test
            name = name.partition("[")[0]
            assert not name or f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), test


@runs
def test_a_mutant_is_killed_by_the_test_that_fails(root: Path, tmp_path: Path) -> None:
    workshop = Workshop(root, tmp_path / "copy")

    verdict = workshop.try_one(KILLED)

    assert verdict.killer == "tests/test_halves.py::test_four"
    assert (workshop.copy / "src/halves.py").read_text() == HALVES
    assert (root / "src/halves.py").read_text() == HALVES


@runs
@pytest.mark.parametrize(
    ("mutant", "trouble"),
    [
        (SURVIVOR, "it survived"),
        (ELSEWHERE, "its text stands 0 times in src/halves.py, not once"),
        (AMBIGUOUS, "its text stands 3 times in src/halves.py, not once"),
        (UNTESTED, "its tests could not run"),
        (BROKEN, "its tests could not run"),
    ],
    ids=lambda value: getattr(value, "title", ""),
)
def test_whatever_is_not_killed_by_a_test_lives(
    root: Path, tmp_path: Path, mutant: Mutant, trouble: str
) -> None:
    verdict = Workshop(root, tmp_path / "copy").try_one(mutant)

    assert not verdict.killer
    assert verdict.trouble.startswith(trouble)


@runs
def test_tests_that_fail_without_a_mutant_prove_nothing(root: Path, tmp_path: Path) -> None:
    (root / "src/halves.py").write_text("def half(n):\n    return n\n")

    with pytest.raises(ValueError, match=r"without any mutant these tests fail:(.|\n)*test_four"):
        Workshop(root, tmp_path / "copy").prove(KILLED.killed_by)


@runs
def test_the_list_says_who_killed_whom_and_a_survivor_is_a_failure(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(root, KILLED)
    all_dead = main([], root)
    write(root, KILLED, SURVIVOR)
    one_lives = main(["half", "halves"], root)
    nobody = main(["quarters"], root)
    shown = capsys.readouterr().out

    assert (all_dead, one_lives, nobody) == (0, 1, 1)
    assert "src/halves.py: thirds\n         killed by tests/test_halves.py::test_four" in shown
    assert "src/halves.py: rounded up\n         IT SURVIVED" in shown
    assert "1 killed, 1 alive" in shown


def write(root: Path, *mutants: Mutant) -> None:
    rows = [
        f'[[mutant]]\ntitle = "{m.title}"\nfile = "{m.file}"\nold = "{m.old}"\nnew = "{m.new}"\n'
        f"killed_by = {list(m.killed_by)}\n"
        for m in mutants
    ]
    (root / "tests" / "mutants").mkdir(exist_ok=True)
    (root / "tests" / "mutants" / "halves.toml").write_text("".join(rows))


def test_words_choose_by_title_and_file() -> None:
    mutants = [KILLED, SURVIVOR]

    assert chosen(mutants, ["thirds"]) == [KILLED]
    assert chosen(mutants, ["halves"]) == mutants
    assert chosen(mutants, []) == mutants
