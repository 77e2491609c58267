"""The house as data: its files, their rooms, and what rooms import of each other."""

import ast
from functools import cache
from pathlib import Path

__all__ = [
    "FOLDERS",
    "MODULES",
    "ROOT",
    "allowed",
    "arrows",
    "files",
    "imports",
    "module",
    "name",
    "room",
    "tree",
]

ROOT = Path(__file__).parents[2]
FOLDERS = ("actors", "bench", "core", "persistence")


def files(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(["kvactors", *(parts[:-1] if parts[-1] == "__init__" else parts)])


def room(path: Path) -> str:
    folder = name(path.parent)
    if "/" in folder or folder == "bench" or path.stem == "__init__":
        return folder
    return f"{folder}/{path.stem}"


MODULES = {module(path): path for path in files(*FOLDERS)}


def imports(node: ast.AST) -> set[str]:
    """Modules that code imports, ours by their full names, for types too."""
    found: set[str] = set()
    for n in ast.walk(node):
        if isinstance(n, ast.Import):
            found |= {alias.name for alias in n.names}
        elif isinstance(n, ast.ImportFrom) and n.module:
            for alias in n.names:
                inner = f"{n.module}.{alias.name}"
                found.add(inner if inner in MODULES else n.module)
    return found


def arrows() -> set[tuple[str, str]]:
    """What rooms import of each other."""
    found = {
        (room(path), room(MODULES[imported]))
        for path in files(*FOLDERS)
        for imported in imports(tree(path))
        if imported in MODULES
    }
    return {(importer, imported) for importer, imported in found if importer != imported}


def allowed(table: str) -> set[tuple[str, str]]:
    """The arrows of a table of lines `importer: imported imported`; indented lines go on."""
    lines = (line.split(":") for line in table.replace("\n    ", " ").strip().splitlines())
    return {(importer, imported) for importer, others in lines for imported in others.split()}
