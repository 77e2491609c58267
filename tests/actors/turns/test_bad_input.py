"""Bad input gets a typed error that names the rule and the numbers, before any work."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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
    ContextExceeded,
    EmptyPrompt,
    GroupSizeMismatch,
    InvalidAgentId,
    InvalidConfig,
    InvalidInput,
    InvalidSampling,
    MemoryExceeded,
    ModelError,
    ModelNotFound,
    SystemPromptMismatch,
    TokenOutOfRange,
)
from kvactors.core.testing.models import PlainTokenizer, tiny_llama, tiny_model

OpenSystem = Callable[..., AgentSystem]
SHORT = Sampling(max_tokens=4)
WAIT = 60


@pytest.fixture(scope="module")
def shared() -> Any:
    with AgentSystem(tiny_llama(), store=False, context=512) as system:
        yield system


@pytest.mark.parametrize(
    ("prompt", "error", "text"),
    [
        ("", EmptyPrompt, "empty"),
        ([], EmptyPrompt, "no token ids"),
        ([1, 128], TokenOutOfRange, "token id 128 .* 0 <= id < 128"),
        ([-1], TokenOutOfRange, "-1"),
        ([1.5], InvalidInput, "token ids are ints"),
        (["a"], InvalidInput, "token ids are ints"),
        ([True], TokenOutOfRange, "True"),
        (None, InvalidInput, "NoneType"),
        (b"bytes", InvalidInput, "bytes"),
        (bytearray(b"bytes"), InvalidInput, "bytearray"),
        ({1: 2}, InvalidInput, "dict"),
        (7, InvalidInput, "int"),
    ],
)
def test_a_bad_prompt_is_refused_at_once(
    shared: AgentSystem, prompt: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        shared.spawn("a").ask(prompt)


def test_a_tokenizer_with_more_tokens_than_the_embedding_fails_that_turn_alone(
    open_system: OpenSystem,
) -> None:
    def mismatched() -> tuple[Any, PlainTokenizer]:
        return tiny_model(), PlainTokenizer(vocab_size=100_000)

    alice = open_system(mismatched).spawn("alice")

    with pytest.raises(TokenOutOfRange, match=r"token id 233 .* 0 <= id < 128"):
        alice.ask("caf\u00e9", sampling=SHORT).get(timeout=WAIT)
    with pytest.raises(TokenOutOfRange, match="token id 233"):
        alice.observe("caf\u00e9").get(timeout=WAIT)
    assert alice.ask("coffee", sampling=SHORT).get(timeout=WAIT).finish_reason == "length"


def test_prompt_and_max_tokens_that_can_never_fit_are_refused_with_the_numbers(
    shared: AgentSystem,
) -> None:
    with pytest.raises(
        ContextExceeded, match=r"0 tokens remembered \+ 500 new \+ max_tokens 20 = 520 .* 512"
    ):
        shared.spawn("b").ask([1] * 500, sampling=Sampling(max_tokens=20)).get(timeout=WAIT)


def test_a_turn_larger_than_the_memory_budget_is_refused_with_the_numbers(
    open_system: OpenSystem,
) -> None:
    system = open_system(store=False, memory_budget=2 * 320 * 256)

    with pytest.raises(MemoryExceeded, match=r"need \d{6} bytes while they run; .* is 163840"):
        system.spawn("a").ask([1] * 1000, sampling=SHORT).get(timeout=WAIT)


@pytest.mark.parametrize(
    ("agent_id", "text"), [("", "0"), ("x" * 256, "256"), (7, "int"), (None, "NoneType")]
)
def test_a_bad_agent_id_is_refused(shared: AgentSystem, agent_id: Any, text: str) -> None:
    with pytest.raises(InvalidAgentId, match=text):
        shared.spawn(agent_id)


def test_any_unicode_id_is_legal_and_stays_inside_the_store(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    system = open_system()
    ids = ["../../etc/passwd", "a/b", "CON", "🦊" * 100, "\ud800", "Alice", "alice", "\0", ".."]

    for agent_id in ids:
        system.spawn(agent_id).ask([1], sampling=SHORT).get(timeout=WAIT).durable.get(timeout=WAIT)
    system.stop()

    assert {path.parts[len(tmp_path.parts)] for path in tmp_path.rglob("*")} == {"store"}
    again = open_system()
    for agent_id in ids:
        assert len(again.spawn(agent_id).transcript().turns) == 2


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"kv_bits": 3}, InvalidConfig, "4, 8 or None"),
        ({"kv_bits": True}, InvalidConfig, "4, 8 or None"),
        ({"kv_bits": 4.0}, InvalidConfig, "4, 8 or None"),
        ({"max_batch": 0}, InvalidConfig, "at least 1"),
        ({"group_size": 48}, InvalidConfig, "32, 64 or 128"),
        ({"group_size": 64.0}, InvalidConfig, "32, 64 or 128"),
        ({"template_kwargs": "x"}, InvalidConfig, "dict"),
        ({"progress": 5}, InvalidConfig, "callable"),
        ({"model_name": 5}, InvalidConfig, "non-empty string"),
        ({"max_disk": float("nan")}, InvalidConfig, "bytes or None"),
        ({"target_latency": float("nan")}, InvalidConfig, "above 0 seconds"),
        ({"memory_budget": 1.5}, InvalidConfig, "whole number of bytes"),
        ({"attention": "fast"}, InvalidConfig, "auto, packed, dequantize"),
        ({"dtype": "int8"}, InvalidConfig, "float32"),
        ({"context": 0}, InvalidConfig, "at least 2"),
        ({"memory_budget": "lots"}, InvalidConfig, "8GB"),
        ({"memory_budget": -1}, InvalidConfig, "above 0"),
        ({"store": True}, InvalidConfig, "directory"),
        ({"store": 7}, InvalidConfig, "directory"),
        ({"model": 7}, InvalidConfig, "callable"),
    ],
)
def test_a_bad_parameter_is_refused_before_anything_starts(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        AgentSystem(**{"model": tiny_llama(), "store": False, **options})


def _raises() -> Any:
    raise OSError("no such weights")


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (_raises, "raised OSError: no such weights"),
        (lambda: None, r"must return \(model, tokenizer\), not None"),
        (lambda: (None, None), r"must return \(model, tokenizer\)"),
        (lambda: (tiny_model(), None), "needs encode and decode: NoneType"),
    ],
)
def test_a_callable_that_makes_no_model_is_a_model_error(model: Any, text: str) -> None:
    with pytest.raises(ModelError, match=text):
        AgentSystem(model, store=False).start()


def test_a_model_of_another_thread_that_was_not_evaluated_is_refused_with_advice() -> None:
    model = tiny_model()
    model.lm_head.weight = model.lm_head.weight + 1

    with pytest.raises(ModelError, match=r"mx\.eval\(model\.parameters\(\)\)"):
        AgentSystem(lambda: (model, PlainTokenizer()), store=False).start()


def test_a_callable_model_needs_a_name_to_be_stored_under(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="model_name="):
        AgentSystem(lambda: None, store=tmp_path)
    AgentSystem(lambda: None, store=False)


@pytest.mark.parametrize(
    "parameters",
    [
        {"max_tokens": 0},
        {"max_tokens": 2.0},
        {"temperature": -1},
        {"temperature": float("nan")},
        {"top_p": 1.1},
        {"top_k": -1},
        {"min_p": 2},
        {"repetition_penalty": 0},
        {"seed": "x"},
        {"stop": ("",)},
        {"stop": (3,)},
        {"stop": 3},
        {"stop": None},
    ],
)
def test_a_bad_sampling_parameter_is_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(InvalidSampling, match=next(iter(parameters))):
        Sampling(**parameters)


@pytest.mark.parametrize("timeout", [0, -1])
def test_a_bad_timeout_is_refused(shared: AgentSystem, timeout: float) -> None:
    with pytest.raises(InvalidInput, match="above 0"):
        shared.spawn("a").ask([1], timeout=timeout)


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
