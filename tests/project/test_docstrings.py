"""Docstrings say what a reader needs before the body: parameters, shapes, and the thread."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from house import FOLDERS, files, name, tree

# Functions with fewer parameters say what they do, and their names are enough.
MANY = 3
# Where it matters on which thread a module runs.
THREADED = ("core/arena", "core/attention", "core/engine", "actors", "persistence")
THREAD = re.compile(r"\bthreads?\b", re.IGNORECASE)
# [B, heads, T, dim], [tokens], [1, kv_heads, tokens, dim / 8].
SHAPE = re.compile(r"\[(\w+|\.\.\.)( / \w+)?(, (\w+|\.\.\.)( / \w+)?)*\]")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def public_functions(module: ast.Module) -> Iterator[tuple[str, Function, str]]:
    """Name, node and docstring of what others may call. A constructor is explained by its class
    too; what begins with an underscore, and all in it, is nobody else's matter."""

    def walk(node: ast.Module | ast.ClassDef, doc: str) -> Iterator[tuple[str, Function, str]]:
        of = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for child in node.body:
            if isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
                yield from walk(child, ast.get_docstring(child) or "")
            elif isinstance(child, Function):
                own = " ".join((ast.get_docstring(child) or "").split())
                if child.name == "__init__":
                    yield of + child.name, child, f"{doc} {own}"
                elif not child.name.startswith("_"):
                    yield of + child.name, child, own

    yield from walk(module, "")


def parameters(function: Function) -> list[ast.arg]:
    args = function.args
    every = [*args.posonlyargs, *args.args, *args.kwonlyargs]
    return [arg for arg in every if arg.arg not in ("self", "cls")]


def is_command(function: Function) -> bool:
    """Of the command line: its docstring is its help, and each option has a help of its own."""
    return any(".command(" in ast.unparse(mark) for mark in function.decorator_list)


def unnamed(module: ast.Module) -> list[str]:
    """Parameters that the docstring of a function with many does not name."""
    return [
        f"{node.lineno} {called}: {arg.arg}"
        for called, node, doc in public_functions(module)
        if len(parameters(node)) >= MANY and not is_command(node)
        for arg in parameters(node)
        if not arg.arg.startswith("_") and not re.search(rf"\b{arg.arg}\b", doc)
    ]


def shapeless(module: ast.Module) -> list[str]:
    """Functions that take or give arrays and do not say of what shape."""
    found = []
    for called, node, doc in public_functions(module):
        types = [*(arg.annotation for arg in parameters(node)), node.returns]
        arrays = any("mx.array" in ast.unparse(kind) for kind in types if kind is not None)
        if arrays and not SHAPE.search(doc):
            found.append(f"{node.lineno} {called}")
    return found


def says_its_thread(path: Path) -> bool:
    """In the module's docstring, or once for all in that of its room."""
    room = path.parent / "__init__.py"
    return any(THREAD.search(ast.get_docstring(tree(place)) or "") for place in (path, room))


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_function_of_many_parameters_names_each(folder: str) -> None:
    assert [f"{name(path)}:{one}" for path in files(folder) for one in unnamed(tree(path))] == []


def test_arrays_have_shapes() -> None:
    assert [f"{name(path)}:{one}" for path in files("core") for one in shapeless(tree(path))] == []


def test_modules_say_on_which_thread_they_run() -> None:
    modules = [path for path in files(*THREADED) if path.name != "__init__.py"]

    assert [name(path) for path in modules if not says_its_thread(path)] == []


@pytest.mark.parametrize(
    ("doc", "missing", "without_shape"),
    [
        ("`rows` [rows, heads], times `by`, along an `axis`.", [], []),
        ("`rows` [rows, heads], times so much, along an `axis`.", ["2 scaled: by"], []),
        ("`rows`, times `by`, along an `axis`.", [], ["2 scaled"]),
    ],
)
def test_what_is_left_out_is_found(doc: str, missing: list[str], without_shape: list[str]) -> None:
    module = ast.parse(
        f'\ndef scaled(rows: mx.array, by: float, axis: int) -> mx.array:\n    """{doc}"""'
    )

    assert unnamed(module) == missing
    assert shapeless(module) == without_shape
