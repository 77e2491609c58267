"""A sweep of two seeds and two rewards, whose agents say what could break tables and pages."""

import pytest
from runs import make_heard, make_run, make_turn, probe

from kvactors.actors.scenarios.journal.records import Failure, Metric, Run

SCRIPT = "<script>document.title = 'caught'</script><img src=x onerror=\"document.title='caught'\">"
HOSTILE = (
    SCRIPT,
    '=cmd|"/c calc"!A1',
    'a, "b"\r\nc',
    "{{ 7 * 7 }} $x_$ </script><!--",
    "zażółć 🦊",
    "None",
)


@pytest.fixture(scope="session")
def sweep() -> list[Run]:
    return [a_run(seed, reward) for reward in (1, 2) for seed in (1, 2)]


def a_run(seed: int, reward: int) -> Run:
    said = [
        make_turn(step, agent, verb="say", answer=text, heard_by=("eve",), scores={"a": -0.5})
        for step, (agent, text) in enumerate(zip(("ann", "<b>bob</b>") * 3, HOSTILE, strict=False))
    ]
    probes = [
        probe(step, right=step % (seed + reward) > 0, phase="second", about="first", distance=1)
        for step in range(10, 16)
    ]
    return make_run(
        *said,
        *probes,
        heard=(make_heard(6, 6, "eve", text="Told in private."), make_heard(7, 0, "eve")),
        seed=seed,
        parameters={"reward": reward},
        own=(Metric("gain", 3.0 * reward + seed, 6),),
        failures=(Failure(9, "eve", "first", 2, "", "ContextExceeded", "no <room>"),),
        ended=seed == 1,
    )
