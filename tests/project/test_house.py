"""How the house reads: few rooms to a folder, few files to a room, short files, and habits that
are left behind."""

import ast
from collections.abc import Callable
from pathlib import Path

import pytest
from house import FOLDERS, ROOT, files, name, tree

MOST_ROOMS = 9
MOST_FILES = 14
MOST_LINES = 300


# How often tests reach behind a part's back: private names, and names that they patch. Each has
# its reason beside it. The number may only become smaller.
REACHING_INSIDE = 12
PATCHING = ("setattr", "setitem", "delattr")


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

    assert not {path: n for path, n in lines.items() if n > MOST_LINES}


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


@pytest.mark.parametrize("look", [wide_functions, fat_classes])
def test_functions_and_classes_stay_small(look: Callable[[Path], list[str]]) -> None:
    assert [entry for path in files(*FOLDERS, "examples", "tests") for entry in look(path)] == []


def test_no_module_reads_anothers_private_names() -> None:
    everything = files(*FOLDERS, "examples")
    assert [entry for path in everything for entry in private_accesses(path)] == []


def patches(path: Path) -> list[str]:
    """Names that a test exchanges behind the back of whoever uses them: monkeypatch's `setattr`
    and `setitem`, mock's `patch`, and `other._name = ...`. Environment variables are no names."""
    return [
        f"{name(path)}:{n.lineno} {ast.unparse(n)[:60]}"
        for n in ast.walk(tree(path))
        if (isinstance(n, ast.Call) and ast.unparse(n.func).split(".")[-1] in PATCHING)
        or (isinstance(n, ast.Call) and "mock.patch" in ast.unparse(n.func))
        or (
            isinstance(n, ast.Attribute)
            and isinstance(n.ctx, ast.Store)
            and n.attr.startswith("_")
            and not n.attr.startswith("__")
            and ast.unparse(n.value) not in ("self", "cls")
        )
    ]


def test_tests_reach_inside_rarely() -> None:
    found = [
        entry
        for path in files("tests")
        for look in (private_accesses, patches)
        for entry in look(path)
    ]

    assert len(found) <= REACHING_INSIDE, "\n".join(found)


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
