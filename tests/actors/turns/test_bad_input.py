"""Bad input gets a typed error that names the rule and the numbers, before any work."""

from pathlib import Path
from typing import Any

import pytest
from makers import OpenSystem

from kvactors.actors import AgentSystem, LanePolicy, Sampling, Supervision
from kvactors.core.errors import (
    ContextExceeded,
    EmptyPrompt,
    InvalidAgentId,
    InvalidConfig,
    InvalidInput,
    InvalidSampling,
    MemoryExceeded,
    ModelError,
    TokenOutOfRange,
)
from kvactors.core.testing.models import PlainTokenizer, tiny_llama, tiny_model

SHORT = Sampling(max_tokens=4)
WAIT = 60


@pytest.mark.parametrize(
    ("prompt", "error", "text"),
    [
        ("", EmptyPrompt, "empty"),
        ([], EmptyPrompt, "no token ids"),
        ([1, 128], TokenOutOfRange, "token id 128 .* 0 <= id < 128"),
        ([-1], TokenOutOfRange, "-1"),
        ([1.5], InvalidInput, "token ids are ints"),
        (["a"], InvalidInput, "token ids are ints"),
        ([True], InvalidInput, "token ids are ints, not True"),
        (None, InvalidInput, "a prompt or messages"),
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
    with pytest.raises(TokenOutOfRange, match="token id 233"):
        alice.ask("tea?", sampling=Sampling(choices=("no", "caf\u00e9"))).get(timeout=WAIT)
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

    with pytest.raises(MemoryExceeded, match=r"need \d{7} bytes while they run; .* is 163840"):
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
        ({"template_kwargs": {"tools": [len]}}, InvalidConfig, "JSON form"),
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
        ({"store": "a\0b"}, InvalidConfig, "directory"),
        ({"model": 7}, InvalidConfig, "callable"),
        ({"prompt_lane": 3}, InvalidConfig, "prompt_lane must be a LanePolicy, not 3"),
        ({"prompt_lane": None}, InvalidConfig, "LanePolicy, not None"),
        ({"deterministic": "x"}, InvalidConfig, "deterministic must be True or False, not 'x'"),
        ({"reproducible": 1}, InvalidConfig, "reproducible must be True or False, not 1"),
        ({"log_text": None}, InvalidConfig, "log_text must be True or False, not None"),
        ({"seed": "x"}, InvalidConfig, "seed must be an int, not 'x'"),
        ({"seed": True}, InvalidConfig, "seed must be an int, not True"),
        ({"journal": 3}, InvalidConfig, "journal must be a file, not 3"),
        ({"journal": ""}, InvalidConfig, "journal must be a file, not ''"),
        ({"journal": "a\0b"}, InvalidConfig, "journal must be a file"),
        ({"journal": "no folder/journal"}, InvalidConfig, "no directory at no folder"),
        ({"watchdog": "x"}, InvalidConfig, "watchdog must be above 0 seconds, not 'x'"),
    ],
)
def test_a_bad_parameter_is_refused_before_anything_starts(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        AgentSystem(**{"model": tiny_llama(), "store": False, **options})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"prompt_lane": "refuse"}, "prompt_lane must be a LanePolicy, not 'refuse'"),
        ({"context_policy": 3}, "context_policy is"),
        ({"system_prompt": 3}, "must be text: int"),
        ({"behaviour": 3}, "behaviour must be an AgentBehaviour or .* not 3"),
        ({"supervision": "restart"}, "supervision must be a Supervision, not 'restart'"),
        ({"parent": 3}, "parent must be the id of an agent, not 3"),
    ],
)
def test_a_bad_parameter_of_an_agent_is_refused_and_none_is_spawned(
    shared: AgentSystem, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidConfig, match=text):
        shared.spawn("refused", **options)
    assert shared.find("refused") is None


def test_what_makes_no_behaviour_is_refused(shared: AgentSystem) -> None:
    with pytest.raises(InvalidConfig, match="made no AgentBehaviour, but 3"):
        shared.spawn("made", behaviour=lambda: 3)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("policy", "options", "text"),
    [
        (LanePolicy, {"capacity": True}, "at least 1 prompt, not True"),
        (LanePolicy, {"timeout": "x"}, "finite, not 'x'"),
        (Supervision, {"backoff": "x"}, "backoff must be .* not 'x'"),
        (Supervision, {"longest_backoff": "x"}, "longest_backoff must be .* not 'x'"),
        (Supervision, {"window": "x"}, "within 'x' s"),
        (Supervision, {"most": True}, "most True"),
    ],
)
def test_a_bad_field_of_a_policy_is_refused(
    policy: Any, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidConfig, match=text):
        policy(**options)


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
        {"min_p": 10**5000},
        {"repetition_penalty": 0},
        {"seed": "x"},
        {"seed": -(2**63) - 1},
        {"seed": 2**64},
        {"seed": 10**5000},
        {"max_tokens": 10**5000},
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


class Counting(PlainTokenizer):
    """`longest`: characters of the longest text that was tokenized."""

    longest = 0

    def encode(
        self,
        text: str,
        add_special_tokens: bool = False,
    ) -> list[int]:
        self.longest = max(self.longest, len(text))
        return super().encode(text, add_special_tokens)


@pytest.mark.parametrize(
    ("spawn", "ask"),
    [
        ({}, {"prompt": "x" * 100_000}),
        ({"system_prompt": "x" * 100_000}, {"prompt": "Hello."}),
        ({}, {"prompt": "Hello.", "sampling": Sampling(choices=("Yes", "x" * 100_000))}),
        ({}, {"messages": [{"role": "user", "content": "x" * 100_000}]}),
    ],
    ids=["a prompt", "a system prompt", "a choice", "a conversation"],
)
def test_a_text_that_no_context_holds_is_refused_before_it_is_tokenized(
    open_system: OpenSystem, spawn: dict[str, Any], ask: dict[str, Any]
) -> None:
    tokenizer = Counting()

    def counted() -> tuple[Any, PlainTokenizer]:
        return tiny_model(), tokenizer

    agent = open_system(counted, context=400).spawn("a", **spawn)

    with pytest.raises(ContextExceeded, match=r"\d{6} characters exceed the context of 400"):
        agent.ask(**ask).get(timeout=WAIT)

    assert tokenizer.longest < 1000
