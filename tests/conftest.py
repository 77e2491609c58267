"""Fixtures of all tests: OpenBLAS before MLX, models built once, and systems that end."""

import gc
import logging
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from kvactors.core import blas

if "PYTEST_XDIST_WORKER" in os.environ:
    # The workers share the cores, and so do the processes that they start.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
blas.preload()

MEMORY = Path("/dev/shm")
if not os.environ.get("KVACTORS_FULL") and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 4e9:
    # Tests of power losses have disks of their own; others need not wait for this machine's.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

from makers import load_as_meant  # noqa: E402
from samples import DAY, FULL, TURNS, has_turn  # noqa: E402

from kvactors.actors import AgentSystem  # noqa: E402
from kvactors.actors.testing import VirtualTimer, use_disk, use_timer  # noqa: E402
from kvactors.core.engine.engine import Engine, EngineConfig  # noqa: E402
from kvactors.core.errors import EngineDied, SystemStopped  # noqa: E402
from kvactors.core.model import mlx_limit  # noqa: E402
from kvactors.core.model.load import LoadedModel  # noqa: E402
from kvactors.core.model.options import ModelOptions  # noqa: E402
from kvactors.core.quant.device import on_cpu  # noqa: E402
from kvactors.core.schedule.speculation.speculation import SpeculationConfig  # noqa: E402
from kvactors.core.testing.families import build  # noqa: E402
from kvactors.core.testing.models import (  # noqa: E402
    Faulty,
    PlainTokenizer,
    snap_to_grid,
    tiny_llama,
    tiny_model,
)
from kvactors.persistence.files.atomic import Files  # noqa: E402
from kvactors.persistence.store.store import Store  # noqa: E402

# A job that a shell runs in the background ignores Ctrl-C, and so would every process it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# On a busy machine an example takes as long as it takes.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

LoadGrid = Callable[..., LoadedModel]

# Families whose layers, or pairs of layers, are alike.
ALIKE = (
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "falcon_h1",
    "gemma2",
    "gemma3_text",
    "gpt_oss",
    "mamba2",
    "qwen3",
    "qwen3_moe",
    "qwen3_next",
)
# Of seed 0 it has a sum on the border of two grid points, and the probe sees another one.
SEEDS = {"gemma4_text": 1}


def pytest_report_header() -> list[str]:
    """Which samples a run takes, and what it lacks."""
    some = f"samples of {DAY}, and slow tests that have their turn (1 in {TURNS}): "
    header = ["all cases" if FULL else f"{some}KVACTORS_DAY={DAY} takes them again"]
    if find_spec("torch") is None or find_spec("executorch") is None:
        header.append("no torch here: `.ci/run export` runs tests/core/attention/export")
    if find_spec("ray") is None:
        header.append("no ray here: `.ci/run cluster` runs tests/actors/cluster/ray")
    return header


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where all tests run, slow ones take turns; where some are named, those run, unless CI names
    them."""
    if config.args == config.getini("testpaths") or os.environ.get("KVACTORS_TURNS"):
        late = [one for one in items if one.get_closest_marker("slow") and not has_turn(one.nodeid)]
        config.hook.pytest_deselected(items=late)
        gone = set(late)
        items[:] = [one for one in items if one not in gone]


@pytest.fixture(scope="module", autouse=True)
def what_is_there_stays() -> None:
    """What imports, collection and caches have made: an engine collects garbage when it is made,
    and a run makes thousands of them."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def no_engine() -> Iterator[None]:
    """As if no other test's engine were alive: MLX's limit is that of the largest."""
    # Those that nobody holds any more have told nobody that they ended.
    gc.collect()
    mlx_limit.allow(mlx_limit, 1 << 50)
    mlx_limit.withdraw(mlx_limit)
    alive = mlx_limit.allowances()
    for engine in alive:
        mlx_limit.withdraw(engine)
    yield
    for engine, nbytes in alive.items():
        mlx_limit.allow(engine, nbytes)


@pytest.fixture
def peaks(no_engine: None) -> None:
    """Peaks are of this test alone, and mean what they do on a CPU."""
    if not on_cpu():
        pytest.skip("a GPU holds what steps used until they ran: budgets of megabytes do not hold")


@pytest.fixture(scope="session")
def load_grid() -> LoadGrid:
    """Loads a random grid model; models are cached by their arguments."""
    cache: dict[Any, LoadedModel] = {}

    def load(
        kv_bits: int | None = 4,
        kind: str = "llama",
        seed: int = 0,
        float_tokens: int = 0,
        **changes: Any,
    ) -> LoadedModel:
        key = (kv_bits, kind, seed, float_tokens, tuple(sorted(changes.items())))
        if key not in cache:
            options = ModelOptions(kv_bits=kv_bits, attention="packed", float_tokens=float_tokens)
            model = snap_to_grid(tiny_model(kind, seed=seed, **changes))
            cache[key] = load_as_meant(kind, lambda: (model, PlainTokenizer()), options)
        return cache[key]

    return load


@pytest.fixture(scope="session")
def load_family() -> LoadGrid:
    """Loads a tiny grid model of a family of mlx-lm, of two layers where those are of all its
    kinds; models are cached by their arguments."""
    cache: dict[Any, LoadedModel] = {}

    def load(family: str, **changes: Any) -> LoadedModel:
        if family in ALIKE:
            changes = {"num_hidden_layers": 2, **changes}
        key = (family, tuple(sorted(changes.items())))
        if key not in cache:
            model = snap_to_grid(build(family, seed=SEEDS.get(family, 0), **changes))
            options = ModelOptions(attention="packed")
            cache[key] = load_as_meant(family, lambda: (model, PlainTokenizer()), options)
        return cache[key]

    return load


@pytest.fixture(scope="session")
def make_engine() -> Callable[..., Engine]:
    """An engine over a loaded model, by default with room for everything."""

    def make(
        loaded: LoadedModel,
        max_batch: int = 16,
        budget: int = 1 << 30,
        *,
        stored: bool = False,
        share: bool = True,
        speculation: SpeculationConfig | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> Engine:
        config = EngineConfig(max_batch, budget, stored, share=share, speculation=speculation)
        return Engine(loaded, config, clock)

    return make


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An open store of its own."""
    opened = Store(tmp_path / "store")
    yield opened
    opened.close()


@pytest.fixture
def heard() -> Iterator[Callable[[str], threading.Event]]:
    """Gives an event that is set when something with this text is logged."""
    handlers: list[logging.Handler] = []
    logger = logging.getLogger("kvactors")

    def listen(text: str) -> threading.Event:
        event = threading.Event()

        class Ear(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                if text in record.getMessage():
                    event.set()

        handlers.append(Ear())
        logger.addHandler(handlers[-1])
        return event

    yield listen
    for handler in handlers:
        logger.removeHandler(handler)


@pytest.fixture
def open_system(tmp_path: Path) -> Iterator[Callable[..., AgentSystem]]:
    """Starts systems over random tiny models, with a `disk` or `timer` of test doubles if given,
    once `prepare` has had them; those still running are stopped at the end."""
    systems: list[AgentSystem] = []

    def start(
        model: Any = None,
        disk: Files | None = None,
        timer: VirtualTimer | None = None,
        prepare: Callable[[AgentSystem], object] | None = None,
        **options: Any,
    ) -> AgentSystem:
        options.setdefault("store", tmp_path / "store")
        system = AgentSystem(model=model or tiny_llama(), **options)
        if disk is not None:
            use_disk(system, disk)
        if timer is not None:
            use_timer(system, timer)
        if prepare is not None:
            prepare(system)
        system.start()
        systems.append(system)
        return system

    yield start
    Faulty.open_all()
    for system in systems:
        with suppress(SystemStopped, EngineDied):
            system.check()
        system.stop(timeout=30)


@pytest.fixture
def open_grid(open_system: Callable[..., AgentSystem]) -> Callable[..., AgentSystem]:
    """Systems that are pinned to exact arithmetic: give them a grid model."""

    def start(model: Any, **options: Any) -> AgentSystem:
        return open_system(model, attention="packed", **options)

    return start
