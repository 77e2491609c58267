"""A device that fails for good: the engine is built anew, and turns go on where they were."""

import threading
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
from makers import OpenSystem
from seeded import bug, seeded

from kvactors.actors import AgentSystem, EngineDied, Sampling, TurnFailed
from kvactors.core.engine.engine import Engine
from kvactors.core.engine.failure import is_fatal
from kvactors.core.testing.models import Faulty, PlainTokenizer, snap_to_grid, tiny_model

LONG = Sampling(max_tokens=30)
WAIT = 60
LOST = RuntimeError("[METAL] Command buffer execution failed: Caused GPU Timeout Error")


class Reloaded:
    """A model that can be loaded again; `refuse` makes that fail, `hold` makes it wait."""

    name = "reloaded"

    def __init__(self) -> None:
        self.model: Any = None
        self.loads = 0
        self.refuse = False
        self.loading = threading.Event()
        self.hold: threading.Event | None = None

    def __call__(self) -> tuple[Any, PlainTokenizer]:
        self.loads += 1
        if self.loads > 1:
            self.loading.set()
            if self.hold is not None:
                self.hold.wait(WAIT)
            if self.refuse:
                raise OSError("the weights are gone")
        self.model = Faulty(snap_to_grid(tiny_model(seed=3)))
        return self.model, PlainTokenizer()


def ask_all(system: AgentSystem, count: int = 3) -> list[Any]:
    return [system.spawn(f"{n}").ask([n + 1] * 9, sampling=LONG) for n in range(count)]


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("error", [LOST, SystemExit("the driver is gone")])
def test_turns_go_on_as_if_nothing_had_happened(
    open_system: OpenSystem, stored: bool, error: BaseException
) -> None:
    options: dict[str, Any] = {"attention": "packed"} | ({} if stored else {"store": False})
    calm = open_system(Reloaded(), attention="packed", store=False)
    for _ in range(2):
        expected = [future.get(timeout=WAIT).token_ids for future in ask_all(calm)]
    model = Reloaded()
    system = open_system(model, **options)
    for future in ask_all(system):
        future.get(timeout=WAIT)
    model.model.arm(step=9, error=error)

    futures = ask_all(system)

    assert [future.get(timeout=WAIT).token_ids for future in futures] == expected
    assert model.loads == 2
    health = system.health()
    assert (health.state, health.rebuilds) == ("ok", 1)
    assert str(error) in health.error
    system.wait_idle(WAIT)
    system.check()


def test_the_step_that_was_launched_ahead_fails_too_and_not_the_load_that_comes_behind_it(
    open_system: OpenSystem,
) -> None:
    told_next = [RuntimeError("[METAL] Command buffer execution failed: Ignored")]

    class Behind(Reloaded):
        def __call__(self) -> tuple[Any, PlainTokenizer]:
            if self.loads:
                synchronize()
            return super().__call__()

    def synchronize() -> None:
        if told_next:
            raise told_next.pop()

    @bug(mx, "synchronize")
    def what_failed_is_told_once(_: Any) -> Any:
        return synchronize

    model = Behind()
    system = open_system(model, store=False)
    ask_all(system)[0].get(timeout=WAIT)
    model.model.arm(step=9, error=LOST)

    with seeded(what_failed_is_told_once):
        for future in ask_all(system):
            assert len(future.get(timeout=WAIT).token_ids) > 0
    assert system.health().rebuilds == 1


def test_a_turn_that_breaks_the_device_each_time_fails_alone(open_system: OpenSystem) -> None:
    class Poisoned(Reloaded):
        def __call__(self) -> tuple[Any, PlainTokenizer]:
            model, tokenizer = super().__call__()
            model.arm(poison=99, error=LOST)
            return model, tokenizer

    model = Poisoned()
    system = open_system(model, store=False)

    guilty = system.spawn("guilty").ask([99, 1], sampling=LONG)
    innocent = ask_all(system)

    with pytest.raises(TurnFailed, match="failed twice"):
        guilty.get(timeout=WAIT)
    assert all(future.get(timeout=WAIT).token_ids for future in innocent)


def test_health_tells_the_truth_while_the_model_is_loaded_again(open_system: OpenSystem) -> None:
    model = Reloaded()
    system = open_system(model, store=False)
    assert system.health().state == "ok"
    model.hold = threading.Event()
    model.model.arm(step=3, error=LOST)

    future = system.spawn("a").ask([1], sampling=LONG)
    assert model.loading.wait(WAIT)
    assert system.health().state == "rebuilding"
    # No step runs, however long that takes.
    assert system.health().step_seconds == 0
    model.hold.set()

    assert future.get(timeout=WAIT).token_ids
    assert system.health().state == "ok"


def test_if_it_cannot_be_built_anew_every_future_fails_with_the_cause(
    open_system: OpenSystem,
) -> None:
    model = Reloaded()
    system = open_system(model, store=False)
    model.refuse = True
    model.model.arm(step=3, error=LOST)

    futures = ask_all(system)

    for future in futures:
        with pytest.raises(EngineDied, match="Command buffer"):
            future.get(timeout=WAIT)
    agent = system.spawn("0")
    for call in (system.stats, lambda: agent.ask([1]), lambda: futures[0].get(timeout=WAIT)):
        with pytest.raises(EngineDied) as caught:
            call()
        assert caught.value.__cause__ is LOST
    assert system.health().state == "dead"


def test_the_watchdog_notices_a_step_that_hangs(
    open_system: OpenSystem, heard: Callable[[str], threading.Event]
) -> None:
    model = Reloaded()
    system = open_system(model, store=False, watchdog=0.02)
    gate, noticed = threading.Event(), heard("takes longer than 0.02 s")
    model.model.arm(hold=gate)

    future = system.spawn("a").ask([1], sampling=LONG)

    assert noticed.wait(WAIT)
    assert system.health().state == "stalled"
    assert system.health().step_seconds > 0.02
    gate.set()
    assert future.get(timeout=WAIT).token_ids
    assert system.wait_idle(WAIT)


@pytest.mark.parametrize(
    ("error", "fatal"),
    [
        (LOST, True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), True),
        (KeyboardInterrupt(), True),
        (ValueError("shapes do not fit"), False),
        (MemoryError(), False),
    ],
)
def test_which_errors_are_the_devices(error: BaseException, fatal: bool) -> None:
    assert is_fatal(error) == fatal


def test_a_check_that_fails_tells_its_asker_and_builds_nothing_anew(
    open_system: OpenSystem,
) -> None:
    system = open_system(Reloaded(), store=False)
    ask_all(system)[0].get(timeout=WAIT)

    @bug(Engine, "check")
    def it_lost_blocks(_true: Any) -> Any:
        def check(_self: Any) -> None:
            raise AssertionError("blocks were lost")

        return check

    with seeded(it_lost_blocks), pytest.raises(AssertionError, match="blocks were lost"):
        system.check()

    assert system.health().rebuilds == 0
    system.wait_idle(WAIT)
    system.check()
