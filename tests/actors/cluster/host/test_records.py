"""Requests, options and answers as plain records: nothing is lost, and nothing odd is taken."""

from typing import Any

import numpy as np
import pytest
from hosts import across

from kvactors.actors import DropOldest, Grammar, InvalidInput, LanePolicy, Sampling, Summarize
from kvactors.actors.cluster.host.answers import read_reply, reply_record
from kvactors.actors.cluster.host.requests import (
    ask_request,
    observe_request,
    read_request,
    read_spawn_options,
    rewind_request,
    spawn_options,
)
from kvactors.actors.cluster.protocol.errors import WrongRecord
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.actors.runtime.supervision import Supervision
from kvactors.actors.turns.reply import Reply, Timing, Usage
from kvactors.core.errors import InvalidConfig, InvalidSampling
from kvactors.core.schedule.logprobs import TokenLogprob

SAMPLINGS = (
    Sampling(),
    Sampling(max_tokens=7, temperature=0.5, top_p=0.9, top_k=3, min_p=0.1, seed=9),
    Sampling(stop=("a", "b"), repetition_penalty=1.1, top_logprobs=2, prompt_logprobs=True),
    Sampling(choices=("yes", "no")),
    Sampling(grammar=Grammar.regex("[a-z]+")),
)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_request_arrives_as_it_was_asked(sampling: Sampling) -> None:
    options: Any = {"sampling": sampling, "timeout": 2.5, "priority": 3, "threshold": 0.5}
    options["template_kwargs"] = {"enable_thinking": False, "mood": ["calm", 1.5]}
    request = ask_request("hello", request_id="r1", **options)

    kind, given = read_request(across(request))

    assert kind == "ask"
    assert given == {"prompt": "hello", "request_id": "r1", **options}


def test_what_is_as_by_default_is_left_to_who_reads_it() -> None:
    tokens: Any = [np.int64(1), 2]
    request = ask_request(tokens, request_id="r1", sampling=Sampling(seed=1))

    assert request == {"kind": "ask", "id": "r1", "prompt": [1, 2], "sampling": {"seed": 1}}
    assert type(request["prompt"][0]) is int


def test_conversations_and_observations_arrive_too() -> None:
    messages = [{"role": "user", "content": "hello"}]

    asked = read_request(across(ask_request(request_id="r1", messages=messages)))
    observed = read_request(across(observe_request("r2", "a fact", "system")))

    assert asked == ("ask", {"messages": messages, "request_id": "r1"})
    assert observed == ("observe", {"text": "a fact", "role": "system", "request_id": "r2"})


@pytest.mark.parametrize("wrong", [None, "", "x" * 201, 7])
def test_a_turn_of_a_cluster_needs_an_id(wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="request_id"):
        ask_request("hello", request_id=wrong)
    with pytest.raises(InvalidInput, match="request_id"):
        observe_request(wrong, "a fact")


@pytest.mark.parametrize("prompt", [[1, "2"], [1.5], [True]])
def test_a_prompt_without_a_plain_form_is_refused_where_it_is_asked(prompt: Any) -> None:
    with pytest.raises(InvalidInput, match="token ids"):
        ask_request(prompt, request_id="r1")


@pytest.mark.parametrize("options", [{"priority": 2**70}, {"timeout": 2**70}])
def test_a_number_that_does_not_cross_is_refused_where_it_is_asked(options: Any) -> None:
    with pytest.raises(InvalidInput, match="64 bits"):
        ask_request("hello", request_id="r1", **options)
    with pytest.raises(InvalidInput, match="64 bits"):
        rewind_request("r1", turns=2**70)


@pytest.mark.parametrize(
    "record",
    [
        {"kind": "ask", "prompt": "no id"},
        {"kind": "ask", "id": 7, "prompt": "a number"},
        {"kind": "run", "id": "r1", "prompt": "another kind"},
        {"kind": ["ask"], "id": "r1"},
        {"kind": "ask", "id": "r1", "prompt": "odd", "shell": "ls"},
        {"kind": "ask", "id": "r1", "request_id": "r2"},
        {"kind": "observe", "id": "r1", "text": "odd", "prompt": "both"},
        {"kind": "ask", "id": "r1", "prompt": "odd", "sampling": {"heat": 1}},
        {"kind": "ask", "id": "r1", "prompt": "odd", "sampling": [1]},
        {"kind": "ask", "id": "r1", "prompt": "odd", "sampling": {"grammar": {"code": "x"}}},
    ],
)
def test_a_request_of_another_form_is_refused(record: dict[str, Any]) -> None:
    with pytest.raises(WrongRecord):
        read_request(across(record))


def test_values_are_checked_as_where_they_are_made() -> None:
    with pytest.raises(InvalidSampling):
        read_request({"id": "r1", "prompt": "x", "sampling": {"max_tokens": 0}})
    with pytest.raises(InvalidConfig):
        read_spawn_options({"prompt_lane": {"capacity": 0}})


@pytest.mark.parametrize("policy", ["refuse", DropOldest(3, 0.25), Summarize(max_tokens=9), None])
def test_options_of_a_new_agent_arrive_as_they_were_given(policy: Any) -> None:
    lane = LanePolicy(capacity=3, when_full="block", timeout=1.0)
    options = spawn_options("You.", context_policy=policy, prompt_lane=lane)

    given = read_spawn_options(across(options))

    assert given.pop("context_policy", None) == policy
    assert given == {"system_prompt": "You.", "prompt_lane": lane}
    assert read_spawn_options(across(spawn_options())) == {}


def test_a_behaviour_and_its_supervision_arrive_as_they_were_given() -> None:
    supervision = Supervision("restart", most=3)
    options = spawn_options("You.", behaviour="trading:Trader", supervision=supervision)

    given = read_spawn_options(across(options))

    expected = {"system_prompt": "You.", "behaviour": "trading:Trader", "supervision": supervision}
    assert given == expected


@pytest.mark.parametrize(
    "record",
    [
        {"rows": 1},
        {"behaviour": 7},
        {"supervision": {"rows": 1}},
        {"prompt_lane": {"rows": 1}},
        {"context_policy": {"kind": "DropOldest", "rows": 1}},
        {"context_policy": {"kind": "Forget"}},
        {"context_policy": "forget"},
        {"context_policy": {}},
    ],
)
def test_options_of_another_form_are_refused(record: dict[str, Any]) -> None:
    with pytest.raises(WrongRecord):
        read_spawn_options(across(record))


def test_a_reply_arrives_as_it_was_given() -> None:
    durable: ReplyFuture[bool] = ReplyFuture()
    logprobs = (TokenLogprob(1, -0.5, ((1, -0.5), (2, -1.5))), TokenLogprob(2, None))
    reply = Reply(
        text="hé",
        token_ids=(1, 2),
        finish_reason="stop",
        cache="warm",
        match="extend",
        usage=Usage(1, 2, 3, 4, 5),
        timing=Timing(0.1, 0.2, 0.3, 0.4, 0.5),
        durable=durable,
        cached=durable,
        scores={"yes": -1.0},
        logprobs=logprobs,
        prompt_logprobs=logprobs,
        recorded=True,
        answer="h",
    )

    record = across(reply_record(reply))

    assert read_reply(record, durable, durable) == reply
    for name in record:
        with pytest.raises(WrongRecord):
            read_reply({key: record[key] for key in record if key != name}, durable, durable)
