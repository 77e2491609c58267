"""What each part loads, what is packaged, and which public paths stay."""

import ast
import importlib.util
import subprocess
import sys
import tomllib
from collections.abc import Sequence

import pytest
from house import FOLDERS, MODULES, ROOT, files, module, tree

import kvactors.actors

# Rooms and modules that must load neither MLX nor pykka.
TENSOR_FREE = (
    "core/blas",
    "core/errors",
    "core/trace",
    "core/cache",
    "core/conversation",
    "core/schedule",
    "core/attention/policy",
    "core/model/info",
    "core/model/options",
    "core/model/worlds",
    "persistence",
    "persistence/errors",
)
# Rooms of actors that must not load MLX until a model is loaded.
MLX_FREE = (
    "actors/agents",
    "actors/behaviours",
    "actors/cluster/protocol",
    "actors/cluster/protocol/directory",
    "actors/cluster/protocol/node",
    "actors/cluster/testing",
    "actors/frontends",
    "actors/system/observe",
    "actors/runtime",
    "actors/scenarios",
    "actors/system",
    "actors/turns",
    "actors/workers",
)
HEAVY = {"mlx", "mlx_lm", "transformers", "tokenizers", "torch"}


def loaded_after(*modules: str) -> set[str]:
    code = (
        f"import {', '.join(modules)}\nimport sys; print(*{{m.split('.')[0] for m in sys.modules}})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


def members(place: str) -> list[str]:
    """A module, or those of a room."""
    found = files(place) if (ROOT / place).is_dir() else [ROOT / f"{place}.py"]
    return [module(path) for path in found]


def who_loads(heavy: set[str], places: Sequence[str]) -> list[str]:
    """Those of `places` that load something `heavy`: asked one by one if all together do."""
    if not heavy & loaded_after(*(name for place in places for name in members(place))):
        return []
    return [place for place in places if heavy & loaded_after(*members(place))]


def test_what_has_no_tensors_loads_no_mlx_and_no_pykka() -> None:
    assert who_loads({*HEAVY, "pykka"}, TENSOR_FREE) == []


def test_actors_load_no_mlx() -> None:
    assert who_loads(HEAVY, MLX_FREE) == []


def test_what_loads_something_is_named() -> None:
    assert who_loads({"pykka"}, [*TENSOR_FREE, "actors/runtime"]) == ["actors/runtime"]


def test_importing_the_public_interface_loads_no_mlx() -> None:
    code = "from kvactors import AgentSystem; import sys; sys.exit('mlx' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_the_package_alone_loads_nothing_of_ours() -> None:
    assert not loaded_after("kvactors") & {"mlx", "pykka", "numpy", "msgpack"}


def test_the_package_has_the_names_of_the_actors() -> None:
    assert sorted(kvactors.__all__) == sorted(["__version__", *kvactors.actors.__all__])
    for public in kvactors.actors.__all__:
        assert getattr(kvactors, public) is getattr(kvactors.actors, public)
    assert set(kvactors.__all__) <= set(dir(kvactors))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        kvactors.nothing  # noqa: B018


def test_every_room_is_packaged_or_the_wheel_would_lack_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    setuptools = project["tool"]["setuptools"]

    rooms = [module(path) for path in files(*FOLDERS) if path.name == "__init__.py"]
    assert sorted(setuptools["packages"]) == sorted(["kvactors", *rooms])
    assert setuptools["package-dir"] == {"": "src"}
    for folder in FOLDERS:
        assert (ROOT / "src/kvactors" / folder).resolve() == ROOT / folder
    assert (ROOT / "src/kvactors/py.typed").exists()


@pytest.mark.parametrize(
    ("public", "names"),
    [
        ("kvactors.actors.cli", ["app", "main"]),
        ("kvactors.actors.dispatcher", ["PooledActor"]),
        ("kvactors.actors.errors", ["StorageError"]),
        ("kvactors.actors.testing", ["VirtualTimer"]),
        ("kvactors.core.batch", ["BatchQuantizedKVCache", "enable_in_mlx_lm"]),
        ("kvactors.core.blas", ["preload"]),
        ("kvactors.core.errors", ["KvactorsError"]),
        ("kvactors.core.trace", ["Tracer"]),
        ("kvactors.persistence.errors", ["StoreError"]),
    ],
)
def test_public_paths_stay(public: str, names: list[str]) -> None:
    assert importlib.util.find_spec(public) is not None
    listed = next(
        ast.literal_eval(node.value)
        for node in tree(MODULES[public]).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    assert set(names) <= set(listed)
