"""What lm-eval's local-completions sent for a choice, a generation and a rolling likelihood, sent
again, and read as it reads it."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from inside import system_of
from likelihoods import logprobs_of

from kvactors.actors.frontends.server.web.serve import Server

RECORDED = Path(__file__).parents[2] / "golden" / "clients" / "lm_eval.json"
EXCHANGES = json.loads(RECORDED.read_text(encoding="utf-8"))["exchanges"]


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_each_request_gets_what_it_reads(exact: Server, exchange: dict[str, Any]) -> None:
    body = exchange["body"]

    answer = httpx.post(f"{exact.url}{exchange['path']}", json=body, timeout=60)

    assert answer.status_code == 200, answer.text
    choices = answer.json()["choices"]
    assert [choice["index"] for choice in choices] == list(range(len(body["prompt"])))
    for choice, prompt in zip(choices, body["prompt"], strict=True):
        if not body.get("echo"):
            assert not set(body["stop"]) & set(choice["text"])
            continue
        # It leaves out the last, the one that is decoded.
        scores, tops = (choice["logprobs"][k] for k in ("token_logprobs", "top_logprobs"))
        own = logprobs_of(prompt)
        expected = [own[place - 1][prompt[place]] for place in range(1, len(prompt))]
        assert scores[0] is None
        assert scores[1:-1] == pytest.approx(expected, abs=1e-3)
        greedy = [
            score == max(top.values()) for score, top in zip(scores[1:-1], tops[1:-1], strict=True)
        ]
        best = [own[place - 1].max() for place in range(1, len(prompt))]
        assert greedy == [one == most for one, most in zip(expected, best, strict=True)]


def test_what_texts_begin_with_is_computed_once(exact: Server) -> None:
    system, shots = system_of(exact), "Question: 2 + 2? Answer: 4.\n" * 60

    def asked(number: int, **options: Any) -> dict[str, Any]:
        body = {"prompt": f"{shots}Question: {number}", "max_tokens": 2, **options}
        answer = httpx.post(f"{exact.url}/v1/completions", json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        usage: dict[str, Any] = answer.json()["usage"]
        return usage

    first, second, third = (asked(number) for number in range(3))
    scored = asked(4, echo=True, logprobs=1)

    known = [usage["prompt_tokens_details"]["cached_tokens"] for usage in (first, second, third)]
    assert known[0] == 0
    assert all(first["prompt_tokens"] - 8 <= each < first["prompt_tokens"] for each in known[1:])
    assert scored["prompt_tokens_details"]["cached_tokens"] == 0
    assert not [agent for agent in system.agents() if agent.agent_id.startswith("text-")]


def test_a_stream_of_several_texts_tells_each_as_it_comes(exact: Server) -> None:
    body = {"prompt": ["My cat is", "Your dog is"], "n": 2, "max_tokens": 20, "ignore_eos": True}
    drawn = {"seed": 3, "stream": True, "stream_options": {"include_usage": True}}

    whole = httpx.post(f"{exact.url}/v1/completions", json={**body, "seed": 3}, timeout=60).json()
    stream = httpx.post(f"{exact.url}/v1/completions", json={**body, **drawn}, timeout=60)

    lines = [line[6:] for line in stream.text.splitlines() if line.startswith("data: {")]
    chunks = [json.loads(line) for line in lines]
    choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    order = [choice["index"] for choice in choices]
    said = ["".join(c["text"] for c in choices if c["index"] == index) for index in range(4)]
    assert said == [choice["text"] for choice in whole["choices"]]
    assert order != sorted(order), "one after the other"
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] == 80
    assert chunks[-1]["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]
