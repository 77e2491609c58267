"""The public interface: asking, streaming, observing, restoring, ending."""

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from makers import OpenSystem

from kvactors.actors import AgentSystem, Sampling
from kvactors.core.errors import SystemStopped
from kvactors.core.testing.models import PlainTokenizer, snap_to_grid, tiny_model

SHORT = Sampling(max_tokens=8)
WAIT = 60


def grid_model() -> tuple[Any, PlainTokenizer]:
    return snap_to_grid(tiny_model(seed=3)), PlainTokenizer()


def test_a_turn_appends_prompt_and_answer_to_the_transcript(open_system: OpenSystem) -> None:
    system = open_system()
    alice = system.spawn("alice")

    reply = alice.ask([1, 2, 3], sampling=SHORT).get(timeout=WAIT)

    assert alice.transcript().token_ids == (1, 2, 3, *reply.token_ids)
    assert [turn.role for turn in alice.transcript().turns] == ["user", "assistant"]
    assert reply.usage.prompt_tokens == 3
    assert reply.usage.generated_tokens == len(reply.token_ids)
    assert reply.cache == "cold"


def test_a_second_turn_reuses_all_but_the_last_token(open_system: OpenSystem) -> None:
    alice = open_system().spawn("alice")
    alice.ask([1, 2, 3], sampling=SHORT).get(timeout=WAIT)
    known = len(alice.transcript().token_ids)

    reply = alice.ask([4, 5], sampling=SHORT).get(timeout=WAIT)

    assert reply.cache == "hot"
    assert reply.usage.reused_tokens == known - 1
    assert reply.usage.prefilled_tokens == 3
    assert reply.usage.prompt_tokens == known + 2


def test_a_restored_agent_is_warm_and_goes_on_as_if_it_had_never_stopped(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    options = {"model": grid_model, "attention": "packed"}
    never_stopped = open_system(**options, store=False).spawn("alice")
    never_stopped.ask("a long beginning " * 20, sampling=SHORT).get(timeout=WAIT)
    expected = never_stopped.ask("and then?", sampling=SHORT).get(timeout=WAIT)

    first = open_system(**options)
    first.spawn("alice").ask("a long beginning " * 20, sampling=SHORT).get(timeout=WAIT)
    first.stop()
    alice = open_system(**options).spawn("alice")
    reply = alice.ask("and then?", sampling=SHORT).get(timeout=WAIT)

    assert reply.cache == "warm"
    assert reply.usage.reused_tokens == expected.usage.reused_tokens > 300
    assert reply.token_ids == expected.token_ids


TALK = """
import sys
from kvactors.core import blas; blas.preload()
from kvactors.actors import AgentSystem, Sampling
from kvactors.core.testing.models import PlainTokenizer, snap_to_grid, tiny_model

def grid_model():
    return snap_to_grid(tiny_model(seed=3)), PlainTokenizer()

with AgentSystem(grid_model, store=sys.argv[1], attention="packed") as system:
    for prompt in sys.argv[2:]:
        reply = system.spawn("alice").ask(prompt, sampling=Sampling(max_tokens=8)).get()
        print(reply.cache, *reply.token_ids)
"""


@pytest.mark.slow
def test_a_new_process_goes_on_as_if_the_old_one_had_never_stopped(tmp_path: Path) -> None:
    def talk(store: str, *prompts: str) -> list[str]:
        command = [sys.executable, "-c", TALK, str(tmp_path / store), *prompts]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        return done.stdout.splitlines()

    first, second = "a long beginning " * 20, "and then?"
    expected = talk("one", first, second)
    parted = [*talk("two", first), *talk("two", second)]

    assert [line.split()[1:] for line in parted] == [line.split()[1:] for line in expected]
    assert [line.split()[0] for line in parted] == ["cold", "warm"]


def test_a_reproducible_run_repeats_bit_for_bit(open_system: OpenSystem) -> None:
    def run() -> list[tuple[int, ...]]:
        alice = open_system(store=False, reproducible=True).spawn("alice")
        return [
            alice.ask("a long text " * 50, sampling=SHORT).get(timeout=WAIT).token_ids
            for _ in range(3)
        ]

    assert run() == run()


@pytest.mark.parametrize("change", [{"kv_bits": 8}, {"model": "other"}])
def test_a_changed_model_or_precision_leaves_the_agent_cold_not_lost(
    open_system: OpenSystem, change: dict[str, Any]
) -> None:
    def other() -> tuple[Any, PlainTokenizer]:
        return tiny_model(seed=77), PlainTokenizer()

    first = open_system(grid_model)
    first.spawn("alice").ask([1, 2, 3], sampling=SHORT).get(timeout=WAIT)
    transcript = first.spawn("alice").transcript()
    first.stop()

    changed = {"model": grid_model, **change}
    if changed["model"] == "other":
        changed["model"] = other
    alice = open_system(**changed).spawn("alice")
    restored = alice.transcript()
    reply = alice.ask([4], sampling=SHORT).get(timeout=WAIT)

    assert restored == transcript
    assert reply.cache == "cold"
    assert reply.usage.prefilled_tokens == reply.usage.prompt_tokens


def test_durable_and_cached_resolve_true_with_a_store_and_false_without(
    open_system: OpenSystem,
) -> None:
    kept = open_system().spawn("a").ask([1], sampling=SHORT).get(timeout=WAIT)
    lost = open_system(store=False).spawn("a").ask([1], sampling=SHORT).get(timeout=WAIT)

    assert (kept.durable.get(timeout=WAIT), kept.cached.get(timeout=WAIT)) == (True, True)
    assert (lost.durable.get(timeout=WAIT), lost.cached.get(timeout=WAIT)) == (False, False)


def test_prompts_to_one_agent_are_answered_in_order(open_system: OpenSystem) -> None:
    alice = open_system().spawn("alice")

    replies = [
        future.get(timeout=WAIT)
        for future in [alice.ask([i], sampling=Sampling(max_tokens=3)) for i in range(1, 9)]
    ]

    said = [token for i, reply in enumerate(replies, 1) for token in (i, *reply.token_ids)]
    assert list(alice.transcript().token_ids) == said


def test_many_agents_share_the_batch_and_say_what_each_says_alone(
    open_system: OpenSystem,
) -> None:
    options: dict[str, Any] = {"model": grid_model, "attention": "packed", "store": False}
    together = open_system(**options, max_batch=8)
    futures = [
        together.spawn(f"{i}").ask([1 + i] * (1 + 17 * i), sampling=SHORT) for i in range(20)
    ]
    replies = [future.get(timeout=WAIT).token_ids for future in futures]

    apart = open_system(**options, max_batch=1)
    alone = [
        apart.spawn(f"{i}").ask([1 + i] * (1 + 17 * i), sampling=SHORT).get(timeout=WAIT).token_ids
        for i in range(20)
    ]
    assert replies == alone


def test_the_same_seed_draws_the_same_tokens_whoever_shares_the_batch(
    open_system: OpenSystem,
) -> None:
    sampling = Sampling(max_tokens=12, temperature=1.5, top_k=40, min_p=0.01, seed=5)
    options: dict[str, Any] = {"model": grid_model, "attention": "packed", "store": False}
    alone = open_system(**options).spawn("a").ask([1, 2], sampling=sampling).get(timeout=WAIT)

    system = open_system(**options)
    crowd = [system.spawn(f"b{i}").ask([i + 3] * 30) for i in range(4)]
    again = system.spawn("a").ask([1, 2], sampling=sampling).get(timeout=WAIT)
    other = system.spawn("c").ask([1, 2], sampling=sampling).get(timeout=WAIT)
    for future in crowd:
        future.get(timeout=WAIT)

    assert again.token_ids == alone.token_ids
    assert other.token_ids != alone.token_ids


def test_the_same_id_is_the_same_agent_and_forget_deletes_it_everywhere(
    open_system: OpenSystem,
) -> None:
    system = open_system(grid_model)
    alice = system.spawn("alice")
    alice.ask([1], sampling=SHORT).get(timeout=WAIT)
    assert system.spawn("alice") is alice
    assert system.agents() == [alice]

    system.forget("alice")

    with pytest.raises(SystemStopped):
        alice.ask([1])
    assert system.agents() == []
    assert system.spawn("alice").transcript().token_ids == ()
    system.stop()
    again = open_system(grid_model).spawn("alice")
    assert again.transcript().token_ids == ()


def test_spawning_writes_nothing_and_many_agents_are_cheap(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    system = open_system()
    before = sorted(tmp_path.rglob("*"))

    for i in range(500):
        system.spawn(f"agent {i}")

    assert sorted(tmp_path.rglob("*")) == before
    assert system.stats()["agents"] == 500


def test_idle_agents_are_evicted_under_the_budget_and_come_back_warm(
    open_system: OpenSystem,
) -> None:
    block = 320 * 256  # bytes of KV per block of this model
    system = open_system(partial(named_grid_model), attention="packed", memory_budget=6 * block)
    agents = [system.spawn(f"{i}") for i in range(10)]
    first = [a.ask([i + 1] * 200, sampling=SHORT).get(timeout=WAIT) for i, a in enumerate(agents)]
    assert system.wait_idle(WAIT)
    assert system.stats()["hot_agents"] < 10

    again = [agent.ask([7], sampling=SHORT).get(timeout=WAIT) for agent in agents]

    assert {reply.cache for reply in again} <= {"warm", "hot"}
    assert again[0].cache == "warm"
    assert again[0].usage.reused_tokens == 200 + len(first[0].token_ids) - 1


def test_a_store_stays_where_it_was_named_wherever_the_program_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    system = AgentSystem(grid_model, store="memories")

    monkeypatch.chdir(tmp_path / "elsewhere")

    with system:
        assert system.parts.store == tmp_path / "memories"
    assert (tmp_path / "memories" / "agents").is_dir()
    assert not any((tmp_path / "elsewhere").iterdir())


def named_grid_model() -> tuple[Any, PlainTokenizer]:
    return grid_model()
