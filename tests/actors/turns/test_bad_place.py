"""Models and stores that are not there, or not ours; systems that do not run; errors are ours."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from makers import OpenSystem

from kvactors.actors import (
    AgentSystem,
    BlockingCall,
    KvactorsError,
    LedgerUnreadable,
    Sampling,
    StoreAlreadyOpen,
    StoreLocked,
    StoreNotWritable,
    SystemStopped,
)
from kvactors.actors.runtime.dispatcher import Dispatcher, SystemActor
from kvactors.core.errors import (
    GroupSizeMismatch,
    InvalidConfig,
    ModelNotFound,
    SystemPromptMismatch,
)
from kvactors.core.testing.models import tiny_llama

SHORT = Sampling(max_tokens=4)
WAIT = 60


def test_a_missing_or_half_model_directory_is_named(tmp_path: Path) -> None:
    half = tmp_path / "half"
    half.mkdir()
    (half / "config.json").write_text("{}")

    with pytest.raises(ModelNotFound, match="no model directory at"):
        AgentSystem(str(tmp_path / "nowhere"), store=False).start()
    with pytest.raises(ModelNotFound, match=r"lacks model\*\.safetensors, tokenizer"):
        AgentSystem(half, store=False).start()


def test_a_hub_name_that_is_not_there_says_where_was_looked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelNotFound, match="hub or its local cache"):
        AgentSystem("nobody/nothing", store=False).start()


def test_a_group_size_that_does_not_divide_the_head_dim_is_refused_with_advice() -> None:
    model = tiny_llama(head_dim=96, hidden_size=96, num_attention_heads=2, num_key_value_heads=1)
    with pytest.raises(GroupSizeMismatch, match=r"64 does not divide .* 96: use group_size=32"):
        AgentSystem(model, store=False, group_size=64).start()


def test_a_context_above_the_models_own_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="context=9000 exceeds the model's 8192"):
        AgentSystem(tiny_llama(), store=False, context=9000).start()


def test_another_system_prompt_for_a_stored_agent_is_refused(open_system: OpenSystem) -> None:
    system = open_system()
    alice = system.spawn("alice", system_prompt="Be brief.")
    alice.ask("hi", sampling=SHORT).get(timeout=WAIT)

    assert system.spawn("alice") is alice
    assert system.spawn("alice", system_prompt="Be brief.") is alice
    with pytest.raises(SystemPromptMismatch, match="Be brief"):
        system.spawn("alice", system_prompt="Be long.")
    system.stop()
    again = open_system()
    assert again.spawn("alice").system_prompt == "Be brief."
    with pytest.raises(SystemPromptMismatch):
        again.spawn("alice", system_prompt="Be long.")


def test_a_store_that_another_process_holds_is_refused_with_its_pid(tmp_path: Path) -> None:
    code = (
        "import sys; from kvactors.persistence.store.store import Store\n"
        f"store = Store({str(tmp_path)!r}); print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(StoreLocked, match=str(holder.pid)):
            AgentSystem(tiny_llama(), store=tmp_path).start()
        holder.communicate()


def test_a_store_that_this_process_holds_is_refused_and_said_so(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    open_system(store=tmp_path)

    with pytest.raises(StoreAlreadyOpen, match="already open in this process"):
        AgentSystem(tiny_llama(), store=tmp_path).start()


def test_a_store_where_a_file_stands_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")

    with pytest.raises(StoreNotWritable):
        AgentSystem(tiny_llama(), store=tmp_path / "file").start()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_store_directory_that_is_not_writable_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)

    with pytest.raises(StoreNotWritable):
        AgentSystem(tiny_llama(), store=tmp_path / "store").start()


def test_a_damaged_ledger_concerns_its_agent_alone(open_system: OpenSystem, tmp_path: Path) -> None:
    system = open_system()
    for name in ("alice", "bob"):
        for prompt in ([1], [2]):
            system.spawn(name).ask(prompt, sampling=SHORT).get(timeout=WAIT)
    system.stop()
    ledger = next((tmp_path / "store" / "agents").glob("alice-*")) / "ledger.log"
    data = bytearray(ledger.read_bytes())
    data[len(data) // 2] ^= 0xFF
    ledger.write_bytes(data)

    again = open_system()

    with pytest.raises(LedgerUnreadable):
        again.spawn("alice")
    assert len(again.spawn("bob").transcript().turns) == 4


def test_using_a_system_that_is_not_running_says_so() -> None:
    system = AgentSystem(tiny_llama(), store=False)
    with pytest.raises(SystemStopped, match="new"):
        system.spawn("a")
    system.start()
    alice = system.spawn("a")
    system.stop()
    system.stop()

    for call in (lambda: system.spawn("b"), lambda: alice.ask([1]), system.start, system.stats):
        with pytest.raises(SystemStopped):
            call()


def test_a_blocking_get_on_a_pool_thread_is_refused_with_advice(shared: AgentSystem) -> None:
    class Caller(SystemActor):
        dispatcher = Dispatcher("test-pool", 1)

        def on_receive(self, agent: Any) -> Any:
            return agent.ask([1], sampling=SHORT).get(timeout=WAIT)

    caller = Caller.start()
    with pytest.raises(BlockingCall, match="tell"):
        caller.ask(shared.spawn("c"), timeout=WAIT)
    caller.stop()
    Caller.dispatcher.close()


def test_waiting_for_the_system_in_a_callback_is_refused_with_advice() -> None:
    refused: list[BaseException] = []

    def progress(*_: object) -> None:
        for wait in (system.wait_idle, system.stop, system.stats):
            try:
                wait()
            except BlockingCall as error:
                refused.append(error)

    with AgentSystem(tiny_llama(), store=False, progress=progress) as system:
        system.spawn("a").ask([1, 2, 3], sampling=SHORT).get(timeout=WAIT)

    assert len(refused) == 3


def test_every_public_error_is_a_kvactors_error() -> None:
    import kvactors.actors as public

    errors = [
        value
        for value in vars(public).values()
        if isinstance(value, type) and issubclass(value, Exception)
    ]

    assert len(errors) > 10
    assert all(issubclass(error, KvactorsError) for error in errors)
    assert json.dumps(sorted(public.__all__)) == json.dumps(public.__all__)
