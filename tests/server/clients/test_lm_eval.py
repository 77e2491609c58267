"""What lm-eval's local-completions sent for a choice, a generation and a rolling likelihood, sent
again, and read as it reads it."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
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
