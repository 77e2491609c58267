"""KV in float in a system: restarted, moved to files, shared, counted, chosen and refused."""

import gc
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from budgets import work_space
from forms import ANSWER, LIMIT, grid_model, load
from makers import OpenSystem, prompts_of

from kvactors.actors import AgentSystem, ExportRejected, Reply
from kvactors.core.arena.wire import layout
from kvactors.core.errors import InvalidConfig
from kvactors.core.model.load import load_model
from kvactors.core.model.options import ModelOptions
from kvactors.core.testing.models import PlainTokenizer, grid
from kvactors.persistence.store.store import Store

WAIT = 120


IN_FLOAT, IN_BITS = 2 * 2 * 64 * 4 * 2, 2 * 2 * 2 * (32 + 8)


def said(system: AgentSystem, agent_id: str, prompt: list[int]) -> Reply:
    reply: Reply = system.spawn(agent_id).ask(prompt, sampling=ANSWER).get(timeout=WAIT)
    assert reply.cached.get(timeout=WAIT)
    return reply


def test_an_agent_restarted_in_either_form_is_as_one_that_never_stopped(
    open_grid: OpenSystem, tmp_path: Path
) -> None:
    told = prompts_of(
        (
            30,
            9,
            9,
            9,
        )
    )
    stayed = open_grid(grid, float_tokens=LIMIT, store=tmp_path / "stayed")
    due = [said(stayed, "a", new) for new in told]

    for new, answer, cache in zip(told, due, ["cold", "warm", "cold", "warm"], strict=True):
        system = open_grid(grid, float_tokens=LIMIT)
        reply = said(system, "a", new)
        fingerprint = system.info.fingerprint
        system.stop(timeout=WAIT)
        assert (reply.cache, reply.token_ids) == (cache, answer.token_ids)
        store = Store(tmp_path / "store")
        (stored,) = {part.layout for part in store.read_kv("a", fingerprint)}
        store.close()
        in_float = reply.usage.prompt_tokens <= LIMIT
        assert stored == layout(load().forms[in_float].spec)


def test_an_agent_in_float_goes_to_files_and_back(open_grid: OpenSystem, tmp_path: Path) -> None:
    system = open_grid(grid, float_tokens=LIMIT)
    said(system, "a", prompts_of((30,))[0])
    with pytest.raises(ExportRejected, match="use fp16-flat, mlx-lm or archive"):
        system.export_agent("a", tmp_path / "a.q4", format="q4-flat")

    system.export_agent("a", tmp_path / "a.kva")
    system.import_agent(tmp_path / "a.kva", "b")

    reply = said(system, "b", [7, 8])
    assert reply.cache == "warm"
    assert reply.token_ids == said(system, "a", [7, 8]).token_ids


def test_a_system_prompt_is_shared_by_agents_of_one_form(open_grid: OpenSystem) -> None:
    prompt = "Remember all, word by word, in order. " * 8
    options: dict[str, Any] = {"float_tokens": len(prompt) + 40, "store": False}
    system = open_grid(grid, **options)
    texts = {"a": "One?", "b": "Two?", "c": "x" * 60, "d": "y" * 60}

    replies = {
        name: system.spawn(name, system_prompt=prompt).ask(text, sampling=ANSWER).get(timeout=WAIT)
        for name, text in texts.items()
    }

    reused = [reply.usage.reused_tokens for reply in replies.values()]
    assert reused == [0, len(prompt), 0, len(prompt)]
    alone = open_grid(grid, isolation="strict", **options)
    for name, text in texts.items():
        again = alone.spawn(name, system_prompt=prompt).ask(text, sampling=ANSWER)
        assert again.get(timeout=WAIT).token_ids == replies[name].token_ids


def test_what_is_in_float_is_counted_by_its_own_bytes(open_grid: OpenSystem) -> None:
    gc.collect()
    system = open_grid(grid, float_tokens=LIMIT, store=False)
    before = system.stats()["hot_bytes"]
    said_short = system.spawn("short").ask(prompts_of((50,))[0], sampling=ANSWER).get(timeout=WAIT)
    short = system.stats()["hot_bytes"]
    said_long = system.spawn("long").ask(prompts_of((300,))[0], sampling=ANSWER).get(timeout=WAIT)
    stats = system.stats()

    assert short - before == (49 + len(said_short.token_ids)) * IN_FLOAT
    assert stats["hot_bytes"] - short == (299 + len(said_long.token_ids)) * IN_BITS
    counted = stats["hot_bytes"] + stats["active_bytes"] + stats["backlog_bytes"]
    assert abs(stats["mlx_bytes"] - counted) < 0.1 * counted


@pytest.mark.usefixtures("peaks")
def test_agents_of_both_forms_stay_within_the_budget(open_system: OpenSystem) -> None:
    budget, asked = (
        work_space(grid, float_tokens=400).least(708, 0) + 1_800_000,
        prompts_of(
            (
                400,
                600,
                380,
                700,
                390,
                500,
                370,
            )
        ),
    )
    system = open_system(grid, store=False, float_tokens=400, memory_budget=budget)
    mx.reset_peak_memory()
    before = mx.get_active_memory()

    turns = [system.spawn(f"{i}").ask(new, sampling=ANSWER) for i, new in enumerate(asked)]

    for turn in turns:
        turn.get(timeout=WAIT)
    assert mx.get_peak_memory() - before <= 1.1 * budget
    assert 0 < system.stats()["evictions"] < len(asked)


def test_the_policy_is_part_of_the_fingerprint_and_none_is_as_ever() -> None:
    off, on, more, in_float = load(float_tokens=0), load(), load(float_tokens=LIMIT + 1), None
    bits = [load("llama", in_float, limit) for limit in (0, LIMIT)]

    assert len({model.fingerprint for model in (off, on, more, bits[0])}) == 4
    plain = load_model(lambda: (grid_model("llama"), PlainTokenizer()), ModelOptions())
    assert off.fingerprint == plain.fingerprint
    assert off.forms == (off,)
    # Where nothing is quantized there is only one form.
    assert bits[0].fingerprint == bits[1].fingerprint
    assert bits[1].floats is None


@pytest.mark.parametrize("wrong", [-1, True, 1.5, "512", None])
def test_what_is_no_number_of_tokens_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidConfig, match="float_tokens must be an int of at least 0 tokens"):
        AgentSystem(grid, store=False, float_tokens=wrong)


def test_a_swap_keeps_the_policy_unless_it_is_given(open_grid: OpenSystem) -> None:
    system = open_grid(grid, float_tokens=LIMIT, store=False)
    before = system.info.fingerprint

    system.swap_model(grid, kv_bits=4)
    kept = system.info.fingerprint
    system.swap_model(grid, float_tokens=0)

    assert kept == before != system.info.fingerprint
