"""Agents of models with windows and states: restarts, rewinds, forks, files, short memory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from makers import OpenSystem

from kvactors.actors import AgentSystem, ExportRejected, ImportRejected, Reply, Sampling
from kvactors.core.arena.pieces import MOST
from kvactors.core.testing.families import build
from kvactors.core.testing.models import PlainTokenizer, snap_to_grid

WAIT = 120
ANSWER = Sampling(max_tokens=6)
FIRST, SECOND = [3, 1, 4, 1, 5] * 60, [9, 2, 6]

every_kind = pytest.mark.parametrize("family", ["gemma3_text", "falcon_h1", "mamba2"])


def grid(family: str) -> Callable[[], Any]:
    def make() -> Any:
        return snap_to_grid(build(family)), PlainTokenizer()

    make.__name__ = family
    return make


def said(system: AgentSystem, agent_id: str, prompt: Any) -> Reply:
    reply: Reply = system.spawn(agent_id).ask(prompt, sampling=ANSWER).get(timeout=WAIT)
    assert reply.cached.get(timeout=WAIT)
    return reply


@every_kind
def test_an_agent_goes_on_after_a_restart_as_if_nothing_had_happened(
    open_system: OpenSystem, tmp_path: Path, family: str
) -> None:
    stayed = open_system(grid(family), attention="packed", store=tmp_path / "stayed")
    said(stayed, "a", FIRST)
    expected = said(stayed, "a", SECOND)
    stayed.stop(timeout=WAIT)
    first = open_system(grid(family), attention="packed")
    said(first, "a", FIRST)
    first.stop(timeout=WAIT)

    reply = said(open_system(grid(family), attention="packed"), "a", SECOND)

    assert (reply.cache, reply.token_ids) == ("warm", expected.token_ids)
    assert reply.usage.reused_tokens == expected.usage.reused_tokens == len(FIRST) + 5


@every_kind
@pytest.mark.parametrize("restarted", [False, True])
def test_a_rewind_to_the_end_of_a_turn_goes_on_from_its_checkpoint(
    open_system: OpenSystem, family: str, restarted: bool
) -> None:
    system = open_system(grid(family), attention="packed")
    said(system, "a", FIRST)
    expected = said(system, "a", SECOND)
    system.spawn("a").rewind().get(timeout=WAIT)
    said(system, "a", [7, 7])
    if restarted:
        system.stop(timeout=WAIT)
        system = open_system(grid(family), attention="packed")

    rewound = system.spawn("a").rewind().get(timeout=WAIT)
    reply = said(system, "a", SECOND)

    assert rewound.tokens == len(FIRST) + 6
    assert reply.token_ids == expected.token_ids
    assert reply.usage.reused_tokens == len(FIRST) + 5


@every_kind
def test_a_rewind_to_where_no_checkpoint_is_prefills_again(
    open_system: OpenSystem, family: str
) -> None:
    system = open_system(grid(family), attention="packed")
    expected = said(system, "b", FIRST[:200] + SECOND)
    said(system, "a", FIRST)

    system.spawn("a").rewind(to_token=200).get(timeout=WAIT)
    reply = said(system, "a", SECOND)

    assert reply.usage.reused_tokens == 0
    assert reply.token_ids == expected.token_ids


@every_kind
def test_a_fork_goes_on_as_its_parent_would_and_copies_nothing(
    open_system: OpenSystem, family: str
) -> None:
    system = open_system(grid(family), attention="packed")
    said(system, "parent", FIRST)
    before = system.stats()["hot_bytes"]

    child = system.spawn("child", from_="parent")

    assert system.stats()["hot_bytes"] == before
    reply = child.ask(SECOND, sampling=ANSWER).get(timeout=WAIT)
    assert reply.usage.reused_tokens == len(FIRST) + 5
    assert reply.token_ids == said(system, "parent", SECOND).token_ids


@every_kind
def test_agents_share_the_prefill_of_one_system_prompt(
    open_system: OpenSystem, family: str
) -> None:
    prompt = "You keep what you are told, word by word, from memory. " * 8
    system = open_system(grid(family), attention="packed")
    first = system.spawn("a", system_prompt=prompt).ask("One?", sampling=ANSWER).get(timeout=WAIT)

    second = system.spawn("b", system_prompt=prompt).ask("Two?", sampling=ANSWER).get(timeout=WAIT)

    shared = system.stats()["shared_tokens"]
    assert first.usage.reused_tokens == 0
    assert second.usage.reused_tokens == shared >= len(prompt) - 1
    alone = open_system(grid(family), attention="packed", store=False)
    again = alone.spawn("b", system_prompt=prompt).ask("Two?", sampling=ANSWER).get(timeout=WAIT)
    assert again.token_ids == second.token_ids


@every_kind
def test_checkpoints_of_the_past_are_few_however_many_turns(
    open_system: OpenSystem, tmp_path: Path, family: str
) -> None:
    system = open_system(grid(family), attention="packed")
    for turn in range(4 * MOST):
        said(system, "a", [turn + 1] * 5)

    segments = list((tmp_path / "store" / "kv").rglob("seg-*"))

    assert len(segments) <= MOST + 2
    system.stop(timeout=WAIT)
    assert said(open_system(grid(family), attention="packed"), "a", SECOND).cache == "warm"


@every_kind
def test_formats_of_one_file_are_refused_and_the_archive_is_not(
    open_system: OpenSystem, tmp_path: Path, family: str
) -> None:
    system = open_system(grid(family), attention="packed")
    said(system, "a", FIRST)
    for form in ("q4-flat", "fp16-flat"):
        with pytest.raises(ExportRejected, match="checkpoints are kept"):
            system.export_agent("a", tmp_path / form, format=form)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ImportRejected, match="layers: the loaded model has"):
        system.import_agent(tmp_path / "file", "c", format="q4-flat")

    system.export_agent("a", tmp_path / "a.kva")
    copied = system.import_agent(tmp_path / "a.kva", "b")

    reply = copied.ask(SECOND, sampling=ANSWER).get(timeout=WAIT)
    assert reply.cache == "warm"
    assert reply.token_ids == said(system, "a", SECOND).token_ids
