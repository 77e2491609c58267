"""How the house reads: few rooms to a folder, few files to a room, short files, and habits that
are left behind."""

import ast
from collections import Counter
from pathlib import Path

import pytest
from house import FOLDERS, ROOT, files, name, tree

MOST_ROOMS = 9
MOST_FILES = 14
MOST_LINES = 300
# Files that are longer, for now: they may only become shorter.
LONG: dict[str, int] = {
    "tests/actors/agents/test_context_policy.py": 352,
    "tests/actors/agents/test_whole_conversations.py": 382,
    "tests/actors/behaviours/test_behaviours.py": 429,
    "tests/actors/behaviours/test_mishaps.py": 427,
    "tests/actors/observe/test_top.py": 370,
    "tests/actors/runtime/test_dispatcher.py": 450,
    "tests/actors/system/test_swap.py": 392,
    "tests/actors/system/test_system.py": 479,
    "tests/actors/turns/test_bad_input.py": 384,
    "tests/actors/workers/test_storage_faults.py": 347,
}
# What may only become less: accesses to private names of other modules, functions of more than six
# positional parameters, classes of more than twenty methods.
PRIVATE: dict[str, int] = {"tests": 15}
WIDE: dict[str, int] = {"core": 1, "tests": 3}
FAT: dict[str, int] = {}


def test_a_room_says_its_rule_and_nothing_else() -> None:
    surfaces = {"actors/__init__.py", "persistence/__init__.py"}
    for folder in {path.parent for path in files(*FOLDERS)}:
        init = folder / "__init__.py"
        assert init.exists(), name(folder)
        assert ast.get_docstring(tree(init)), name(init)
        assert len(tree(init).body) == 1 or name(init) in surfaces, name(init)


@pytest.mark.parametrize("folder", [*FOLDERS, "tests"])
def test_a_folder_holds_few_rooms_and_a_room_few_files(folder: str) -> None:
    inside: dict[Path, set[Path]] = {}
    for path in files(folder):
        if path.name != "__init__.py":
            inside.setdefault(path.parent, set()).add(path)
        for parent in path.parents:
            if ROOT in parent.parents and parent != ROOT / folder and name(path) != name(parent):
                inside.setdefault(parent.parent, set()).add(parent)
    for where, found in inside.items():
        rooms = [path for path in found if path.is_dir()]
        assert len(rooms) <= MOST_ROOMS, name(where)
        assert len(found) - len(rooms) <= MOST_FILES, name(where)


def test_files_stay_short_enough_to_read() -> None:
    lines = {
        name(path): path.read_text(encoding="utf-8").count("\n")
        for path in files(*FOLDERS, "examples", "tests")
    }

    assert not {path: n for path, n in lines.items() if n > LONG.get(path, MOST_LINES)}
    assert not [path for path in LONG if lines.get(path, 0) <= MOST_LINES], "take it from the list"


def private_accesses(path: Path) -> list[str]:
    """`other._name`, where no `_name` is defined in the same file."""
    own = {"self", "cls", "super", "mcs"}
    defined: set[object] = set()
    for n in ast.walk(tree(path)):
        if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.add(n.name)
        elif isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store):
            defined.add(n.attr)
        elif isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name):
            defined.add(n.target.id)
        elif isinstance(n, ast.Constant):
            defined.add(n.value)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store):
            defined.add(n.id)
    return [
        f"{name(path)}:{n.lineno} {n.attr}"
        for n in ast.walk(tree(path))
        if isinstance(n, ast.Attribute)
        and n.attr.startswith("_")
        and not n.attr.startswith("__")
        and not (isinstance(n.value, ast.Name) and n.value.id in own)
        and n.attr not in defined
    ]


def wide_functions(path: Path) -> list[str]:
    """Functions of more than six positional parameters."""
    return [
        f"{name(path)}:{n.lineno} {n.name}"
        for n in ast.walk(tree(path))
        if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
        and len([a for a in (*n.args.posonlyargs, *n.args.args) if a.arg not in ("self", "cls")])
        > 6
    ]


def fat_classes(path: Path) -> list[str]:
    """Classes of more than twenty methods."""
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    return [
        f"{name(path)}:{n.lineno} {n.name}"
        for n in ast.walk(tree(path))
        if isinstance(n, ast.ClassDef) and sum(isinstance(f, functions) for f in n.body) > 20
    ]


@pytest.mark.parametrize(
    ("look", "most"), [(private_accesses, PRIVATE), (wide_functions, WIDE), (fat_classes, FAT)]
)
def test_habits_that_are_left_behind(look: object, most: dict[str, int]) -> None:
    assert callable(look)
    found = [entry for path in files(*FOLDERS, "examples", "tests") for entry in look(path)]

    counts = Counter(entry.split("/")[0] for entry in found)
    assert {top: n for top, n in counts.items() if n > most.get(top, 0)} == {}, "\n".join(found)


def test_public_names_are_listed_and_sorted() -> None:
    for path in files(*FOLDERS):
        for node in tree(path).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                names = ast.literal_eval(node.value)
                order = sorted(names, key=lambda n: (not n.isupper(), n[0].islower(), n))
                assert names == order, name(path)


def test_nothing_of_ours_names_a_path_of_one_machine() -> None:
    for path in files(*FOLDERS, "tests", "examples"):
        assert "/work/" + "main" not in path.read_text(encoding="utf-8"), name(path)
