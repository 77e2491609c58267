"""How often threads take turns is the program's own, but for the length of a step that asks."""

import sys
import threading
from collections.abc import Iterator

import pytest
from makers import OpenSystem

from kvactors.actors.workers.switching import switching
from kvactors.core.errors import InvalidConfig
from kvactors.core.schedule.sampling import Sampling
from kvactors.core.testing.models import PlainTokenizer, tiny_model

USUAL, SHORT, SHORTER = 0.004, 0.0005, 0.0002


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(USUAL)
    yield
    sys.setswitchinterval(before)


def now() -> float:
    return round(sys.getswitchinterval(), 6)


def test_it_is_short_within_and_the_programs_own_behind() -> None:
    with switching(SHORT):
        within = now()

    assert (within, now()) == (SHORT, USUAL)


def test_none_leaves_it_as_it_is() -> None:
    with switching(None):
        assert now() == USUAL


def test_it_is_restored_after_an_error() -> None:
    with pytest.raises(RuntimeError), switching(SHORT):
        raise RuntimeError

    assert now() == USUAL


def test_the_shortest_of_several_holds_until_the_last_has_ended() -> None:
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with switching(SHORTER):
            entered.set()
            leave.wait()

    thread = threading.Thread(target=other)
    with switching(SHORT):
        thread.start()
        entered.wait()
        both = now()
    one = now()
    leave.set()
    thread.join()

    assert (both, one, now()) == (SHORTER, SHORTER, USUAL)


def test_it_is_never_made_longer() -> None:
    with switching(0.9):
        assert now() == USUAL


def test_what_the_program_sets_meanwhile_stays() -> None:
    with switching(SHORT):
        sys.setswitchinterval(0.003)

    assert now() == 0.003


class Watching(PlainTokenizer):
    """It is asked within a step whether what was said ends in a stop string."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[float] = set()

    def decode(self, tokens: list[int]) -> str:
        if threading.current_thread().name.startswith("kvactors-mlx"):
            self.seen.add(now())
        return super().decode(tokens)


@pytest.mark.parametrize(("asked", "within"), [(SHORT, SHORT), (None, USUAL)])
def test_a_system_takes_its_steps_within(
    open_system: OpenSystem, asked: float | None, within: float
) -> None:
    tokenizer, sampling = Watching(), Sampling(max_tokens=12, stop=("never",))
    system = open_system(
        model=lambda: (tiny_model(), tokenizer), model_name="m", switch_interval=asked
    )

    system.spawn("a").ask("hello", sampling=sampling).get()

    assert tokenizer.seen == {within}
    system.wait_idle()
    assert now() == USUAL


@pytest.mark.parametrize("asked", [0, -1, 2, "5ms", True, float("nan")])
def test_an_interval_that_python_does_not_take_is_refused(
    open_system: OpenSystem, asked: object
) -> None:
    with pytest.raises(InvalidConfig, match="switch_interval must be from"):
        open_system(switch_interval=asked)
