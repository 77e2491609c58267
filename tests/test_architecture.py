"""The rules of the structure: who imports whom, what is packaged, what loads MLX, file sizes."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("actors", "bench", "core", "persistence")
# folder -> packages it must never import
FORBIDDEN = {
    "core": {"pykka", "kvactors.actors", "kvactors.persistence", "kvactors.bench"},
    "persistence": {
        "mlx",
        "mlx_lm",
        "pykka",
        "kvactors.core",
        "kvactors.actors",
        "kvactors.bench",
    },
    "actors": set(),
}
# What it may import of them all the same.
ALLOWED: dict[str, str] = {"persistence": "kvactors.core.errors."}
TENSOR_FREE = (
    "kvactors.core.blocks",
    "kvactors.core.errors",
    "kvactors.core.hashing",
    "kvactors.core.offsets",
    "kvactors.core.options",
    "kvactors.core.policy",
    "kvactors.core.prefix",
    "kvactors.core.request",
    "kvactors.core.rewind",
    "kvactors.core.sampling",
    "kvactors.core.scheduler",
    "kvactors.core.slots",
    "kvactors.core.spec",
    "kvactors.core.status",
    "kvactors.core.template",
    "kvactors.core.trace",
    "kvactors.core.transcript",
    "kvactors.core.turn",
)
LONGEST_FILE = 350


def modules(folder: str) -> list[Path]:
    return sorted((ROOT / folder).glob("*.py"))


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_imports_point_in_one_direction(folder: str) -> None:
    for path in modules(folder):
        wrong = {
            name
            for name in imports(path)
            if not f"{name}.".startswith(ALLOWED.get(folder, ()))
            for forbidden in FORBIDDEN[folder]
            if name == forbidden or name.startswith(forbidden + ".")
        }
        assert not wrong, f"{path.name} imports {wrong}"


def test_every_package_is_listed_or_the_wheel_would_lack_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

    setuptools = project["tool"]["setuptools"]

    assert setuptools["packages"] == [f"kvactors.{folder}" for folder in FOLDERS]
    assert setuptools["package-dir"] == {f"kvactors.{folder}": folder for folder in FOLDERS}
    for folder in FOLDERS:
        assert (ROOT / folder / "py.typed").exists()
        assert not [p for p in (ROOT / folder).glob("*/*.py") if "__pycache__" not in p.parts]


def loaded_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys; print(*sorted({{m.split('.')[0] for m in sys.modules}}))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


def test_importing_the_public_interface_loads_no_mlx() -> None:
    loaded = loaded_after("from kvactors.actors import AgentSystem")

    assert not loaded & {"mlx", "mlx_lm", "transformers", "tokenizers", "torch"}


def test_the_tensor_free_modules_load_no_mlx() -> None:
    loaded = loaded_after("import " + ", ".join(TENSOR_FREE))

    assert not loaded & {"mlx", "mlx_lm", "transformers", "pykka"}


def test_files_stay_short_enough_to_read() -> None:
    long = {
        path.name: lines
        for folder in FOLDERS
        for path in modules(folder)
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > LONGEST_FILE
    }

    assert not long


def test_public_names_are_listed_and_sorted() -> None:
    for folder in FOLDERS:
        for path in modules(folder):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for node in tree.body:
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                    names = ast.literal_eval(node.value)
                    order = sorted(names, key=lambda n: (not n.isupper(), n[0].islower(), n))
                    assert names == order, path.name


def test_nothing_of_ours_names_a_path_of_one_machine() -> None:
    for folder in (*FOLDERS, "tests", "examples"):
        for path in modules(folder):
            text = path.read_text(encoding="utf-8")
            assert "/work/" + "main" not in text, path.name
