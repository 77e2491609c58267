"""Every line of the table at tiny size: it runs, and both sides do the same work."""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib.util import find_spec

import pytest
from bench_models import echoing_peer, failing_peer

from kvactors.bench.peer_process import PeerFailed, in_its_own_process
from kvactors.bench.regime import NOTHING_DECODED, Regime, run
from kvactors.bench.serve.clients import Request
from kvactors.bench.serve.crowd import crowd
from kvactors.bench.setup import Scale, Setup
from kvactors.bench.table.suite import REGIMES, choose
from kvactors.core.testing.models import endless_grid

TINY = Scale(runs=2, shrink=1024, fewer=16, decoded=3)
# Codes there, and a grammar that rules tokens out, change tokens wherever sums are exact.
CODES = {"decode-one-4k", "decode-grammar"}
# Nodes open their model from files: a random one, whose sums are not exact.
OF_NODES = {
    "cluster-ask",
    "cluster-ask-two",
    "cluster-16-streams",
    "cluster-move-4k",
    "cluster-move-16k",
}
MAY_DIFFER = CODES | OF_NODES
WITHOUT_RAY = "Ray is not installed: pip install 'kvactors[ray]'"


@pytest.mark.slow
@pytest.mark.parametrize("regime", REGIMES, ids=[regime.name for regime in REGIMES])
def test_both_sides_decode_the_same_tokens_where_sums_are_exact_and_kv_is_float(
    regime: Regime,
) -> None:
    may_differ = regime.differ == NOTHING_DECODED or regime.name in MAY_DIFFER
    strict = regime if may_differ else replace(regime, differ="")

    outcome = run(strict, Setup(TINY, endless_grid, kv_bits=None))

    if find_spec("ray") is None and outcome.cannot == WITHOUT_RAY:
        pytest.skip(f"{WITHOUT_RAY} (.ci/run cluster does)")
    # How long anything takes at this size says nothing.
    assert (outcome.cannot, outcome.invalid) == ("", "")
    assert len(outcome.pairs) == (regime.runs or TINY.runs)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["guess-worlds-1", "draft-answers"])
def test_both_sides_are_asked_in_each_run_what_nobody_was_asked_before(name: str) -> None:
    [regime] = choose([f"^{name}$"])

    with regime.measure(Setup(TINY, endless_grid, kv_bits=None)) as (ours, theirs):
        said = [ours().tokens for _ in range(2)]
        others = [theirs().tokens for _ in range(2)]

    assert said[0] != said[1]
    assert others == said


@pytest.mark.slow
def test_bytes_of_forks_are_those_that_mlx_has_allocated_and_a_formula_s() -> None:
    import mlx.core as mx

    [regime] = choose(["^forks-bytes$"])
    setup = Setup(TINY, endless_grid, kv_bits=None)

    with regime.measure(setup) as (ours, theirs):
        before = ours().value
        kept = mx.zeros(10_000_000)
        mx.eval(kept)
        found = ours().value - before
        by_formula = theirs().value

    assert 0.5 < 1e6 * found / kept.nbytes < 1.5
    assert by_formula == setup.loaded.spec.bytes_per_token * (48 + 16 * 100) / 1e6


@pytest.mark.slow
def test_a_peer_that_fails_says_what_it_raised_in_its_own_process() -> None:
    with (
        pytest.raises(PeerFailed, match="ValueError: no such peer"),
        in_its_own_process(endless_grid, failing_peer),
    ):
        pass


@pytest.mark.slow
def test_a_peer_has_the_model_in_another_process_and_answers_what_it_is_asked() -> None:
    with in_its_own_process(endless_grid, echoing_peer) as ask:
        assert ask(1, 2) == ("Model", 1, 2)
        assert ask(3) == ("Model", 3)


@contextmanager
def answering_in_turn(*heads: bytes, ended: int = 0) -> Iterator[str]:
    """The URL of a server that answers one connection after the other with these heads, and ends
    so many of the streams behind them."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as streams:

        def serve() -> None:
            for number, head in enumerate(heads):
                stream, _ = listener.accept()
                stream.recv(65_536)
                stream.sendall(head)
                if number < ended:
                    stream.close()
                else:
                    streams.enter_context(stream)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


def test_a_crowd_that_is_answered_instead_of_waiting_is_no_measurement() -> None:
    three, waiting = [b"HTTP/1.1 200 OK\r\n\r\n"] * 3, (Request("/", {}),) * 3
    waits, answered = crowd(), crowd()

    with answering_in_turn(*three) as url:
        waits(url, waiting)
        assert waits() == 0
    with answering_in_turn(*three, ended=2) as url:
        answered(url, waiting)
        with pytest.raises(RuntimeError, match="2 of 3 streams ended"):
            answered()


def test_a_crowd_that_is_refused_is_no_measurement() -> None:
    with (
        answering_in_turn(b"HTTP/1.1 503 Busy\r\n\r\n") as url,
        pytest.raises(RuntimeError, match="who was to wait was refused: HTTP"),
    ):
        crowd()(url, (Request("/", {}),))
