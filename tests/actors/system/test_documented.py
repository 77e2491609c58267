"""What the pages promise of a whole system: where memories are kept, how they are backed up, half
precision, the target latency, and rows of every kind in one batch."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from makers import OpenSystem

from kvactors.actors import AgentSystem, Reply, Sampling
from kvactors.core.model.load import CPU_CHUNK
from kvactors.core.testing.families import build
from kvactors.core.testing.models import PlainTokenizer, endless_grid, grid, snap_to_grid
from kvactors.core.trace import DecodeStep, PrefillStep

WAIT = 120
ANSWER = Sampling(max_tokens=6)
BEGINNING = [3, 1, 4, 1, 5] * 80


def said(system: AgentSystem, agent_id: str, prompt: list[int]) -> Reply:
    reply: Reply = system.spawn(agent_id).ask(prompt, sampling=ANSWER).get(timeout=WAIT)
    assert reply.cached.get(timeout=WAIT)
    return reply


# -- where ---------------------------------------------------------------------------------


def test_without_a_store_memories_are_kept_in_kvactors_home(
    open_system: OpenSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "of the user"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("KVACTORS_HOME", str(tmp_path / "named"))
    first = open_system(grid, store=None)
    said(first, "alice", BEGINNING)
    first.stop(timeout=WAIT)

    named = open_system(grid, store=tmp_path / "named")
    found = said(named, "alice", [7])
    named.stop(timeout=WAIT)
    monkeypatch.delenv("KVACTORS_HOME")
    unnamed = open_system(grid, store=None)

    assert (found.cache, found.usage.reused_tokens) == ("warm", len(BEGINNING) + 5)
    assert unnamed.agents() == []
    assert (home / ".kvactors").is_dir()


@pytest.mark.parametrize("command", ["cp -a", "rsync -aH"])
def test_a_backup_of_a_stopped_system_has_every_memory_and_is_no_larger(
    open_system: OpenSystem, tmp_path: Path, command: str
) -> None:
    program, options = command.split()
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed here")
    store, backup = tmp_path / "store", tmp_path / "backup"
    system = open_system(grid, attention="packed", store=store)
    said(system, "alice", BEGINNING)
    child = system.spawn("child", from_="alice")
    child.ask([8], sampling=ANSWER).get(timeout=WAIT).cached.get(timeout=WAIT)
    transcripts = {name: system.spawn(name).transcript() for name in ("alice", "child")}
    system.stop(timeout=WAIT)

    subprocess.run([program, options, f"{store}/.", backup], check=True, timeout=WAIT)

    # A fork's files are its parent's.
    assert nbytes(store, once=True) < nbytes(store) == nbytes(backup)
    assert nbytes(backup, once=True) == nbytes(store, once=True)
    shutil.rmtree(store)
    restored = open_system(grid, attention="packed", store=backup)
    assert {n: restored.spawn(n).transcript() for n in transcripts} == transcripts
    assert [said(restored, name, [9]).cache for name in transcripts] == ["warm", "warm"]


def nbytes(folder: Path, *, once: bool = False) -> int:
    """Bytes of all files; `once`: of those that are one file, once."""
    found = [path.stat() for path in folder.rglob("*") if path.is_file()]
    if once:
        found = list({one.st_ino: one for one in found}.values())
    return sum(one.st_size for one in found)


# -- half precision ------------------------------------------------------------------------


def test_in_float16_an_agent_goes_on_after_a_restart_as_if_it_had_stayed(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    half: dict[str, Any] = {"dtype": "float16", "attention": "packed"}
    stayed = open_system(grid, store=tmp_path / "stayed", **half)
    said(stayed, "alice", BEGINNING)
    expected = said(stayed, "alice", [9, 2])
    first = open_system(grid, **half)
    said(first, "alice", BEGINNING)
    first.stop(timeout=WAIT)
    again = open_system(grid, **half)

    reply = said(again, "alice", [9, 2])

    assert {layer.dtype for layer in again.spec.layers} == {"float16"}
    # Codes of half a byte, and a scale and a bias of two bytes for 64 of them.
    assert again.spec.bytes_per_token == 2 * 2 * 2 * (64 // 2 + 2 * 2)
    assert (reply.cache, reply.token_ids) == ("warm", expected.token_ids)
    assert reply.usage.reused_tokens == expected.usage.reused_tokens


def test_what_was_kept_in_float32_is_not_read_in_float16(open_system: OpenSystem) -> None:
    first = open_system(grid)
    said(first, "alice", BEGINNING)
    first.stop(timeout=WAIT)

    reply = said(open_system(grid, dtype="float16"), "alice", [9])

    assert (reply.cache, reply.usage.reused_tokens) == ("cold", 0)


# -- on time -------------------------------------------------------------------------------


def test_the_target_latency_decides_how_long_a_stream_waits_for_anothers_prompt(
    open_system: OpenSystem,
) -> None:
    # No chunk is longer on a CPU.
    assert set(chunks(open_system, 60.0)) == {CPU_CHUNK}
    # Where others take the machine a step may be so slow that a chunk is short beside it.
    assert any(min(chunks(open_system, 0.0001)) < CPU_CHUNK for _ in range(5))


def chunks(open_system: OpenSystem, target: float) -> list[int]:
    """Tokens of bob's first chunks, of a prompt of 3,000, while alice's are streamed."""
    system = open_system(endless_grid, store=False, target_latency=target)
    # Both paces are known then.
    system.spawn("carol").ask([7] * 600, sampling=Sampling(max_tokens=12)).get(timeout=WAIT)
    with system.trace() as recorder:
        stream = system.spawn("alice").stream([5] * 300, sampling=Sampling(max_tokens=2000))
        next(iter(stream))
        system.spawn("bob").ask([6] * 3000, sampling=ANSWER).get(timeout=WAIT)
        stream.close()
    system.stop(timeout=WAIT)
    prefills = [event for event in recorder.events if isinstance(event, PrefillStep)]
    parts = [part for event in prefills for part in event.parts if part[0] == "bob"]
    # The last chunk may give the first token, too.
    assert parts[-1][2] == 2999 + any("bob" in event.agent_ids for event in prefills)
    return [end - start for _, start, end in parts[:4]]


# -- batches -------------------------------------------------------------------------------


def of_family(family: str) -> Callable[[], Any]:
    def make() -> Any:
        return snap_to_grid(build(family)), PlainTokenizer()

    make.__name__ = family
    return make


@pytest.mark.slow
@pytest.mark.parametrize(
    "family", ["gemma3_text", "deepseek_v3", "mamba2"], ids=["windows", "latent", "recurrent"]
)
def test_agents_of_every_kind_of_model_decode_in_one_batch_and_answer_as_alone(
    open_system: OpenSystem, family: str
) -> None:
    prompts = {f"{length}": [1 + length % 100] * length for length in (5, 40, 300)}
    answer = Sampling(max_tokens=24)
    alone = open_system(of_family(family), store=False, attention="packed", max_batch=1)
    expected = {
        name: alone.spawn(name).ask(prompt, sampling=answer).get(timeout=WAIT).token_ids
        for name, prompt in prompts.items()
    }
    alone.stop(timeout=WAIT)

    system = open_system(of_family(family), store=False, attention="packed")
    with system.trace() as recorder:
        asked = {name: system.spawn(name).ask(p, sampling=answer) for name, p in prompts.items()}
        together = {name: reply.get(timeout=WAIT).token_ids for name, reply in asked.items()}

    assert together == expected
    steps = [event for event in recorder.events if isinstance(event, DecodeStep)]
    assert max(step.batch for step in steps) == len(prompts)
    assert len(steps) < 3 * answer.max_tokens
