"""What is its author's own: modules beside a scenario's files, else those that are installed.

Two scenarios of one process may each have a module of the same name beside them: each is loaded
under a name of its own, by which a pickle finds it, too. Any thread, one scenario at a time.
"""

import importlib
import sys
from collections.abc import Iterable
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType

import xxhash

__all__ = ["look_in", "own_module"]

# Where the scenario that was opened last has what is its own.
_homes: list[Path] = []


def look_in(homes: Iterable[Path]) -> None:
    """From now on modules are looked for in these `homes` first. What they themselves import may
    stand there, too, as it may beside a program."""
    _homes[:] = [home.resolve() for home in homes]
    sys.path += [where for where in dict.fromkeys(map(str, _homes)) if where not in sys.path]
    importlib.invalidate_caches()  # A file may be as young as what is known of its folder.


def own_module(name: str, homes: Iterable[Path] | None = None) -> ModuleType:
    """The module of a `name` in one of the `homes`, by default those that were named last, else as
    Python finds it. Raises what importing it raises."""
    for home in _homes if homes is None else homes:
        file = _file(name, home)
        if file is not None:
            known = sys.modules.get(name)
            # Where the program has imported it by itself, both mean the same.
            if known is not None and getattr(known, "__file__", None) == file:
                return known
            return importlib.import_module(f"{_package(home)}.{name}")
    return importlib.import_module(name)


def _file(name: str, home: Path) -> str | None:
    """The file of a module below a `home`; None where there is none."""
    places, spec = [str(home)], None
    for part in name.split("."):
        spec = PathFinder.find_spec(part, places)
        if spec is None:
            return None
        places = list(spec.submodule_search_locations or ())
    return spec.origin if spec is not None and spec.has_location else None


def _package(home: Path) -> str:
    """The package that the modules in a `home` are in."""
    name = f"beside_{xxhash.xxh64_hexdigest(str(home).encode())}"
    if name not in sys.modules:
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(home)]
        sys.modules[name] = module_from_spec(spec)
    return name
