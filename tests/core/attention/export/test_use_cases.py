"""The loops of examples/own_loop.py, as they are, over two frameworks at once: every step of an
exported program has the logits of mlx-lm's model on the same weights."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import own_loop
import pytest
import torch
from cell_bugs import BUGS
from mlx_lm import load
from paired import Paired, weights_of
from seeded import Bug, seeded

from kvactors.core import sessions
from kvactors.core.attention.export import session as exported
from kvactors.core.attention.export.llama import Llama, LlamaConfig, export_llama
from kvactors.core.cache.family.config import CacheConfig
from kvactors.core.model.options import DEFAULT_MODEL
from kvactors.core.testing.models import tiny_model

Text = list[int]


@dataclass(frozen=True)
class Weights:
    """Of one model, and of a worse one that drafts for it, as mlx-lm has them and exported."""

    model: tuple[Any, Any]
    draft: tuple[Any, Any]
    limit: float
    encode: Callable[[str], Text]
    end: int | None = None

    def open(self, kind: str, *, draft: bool = False) -> Any:
        """A Paired; to the loops it is a session."""
        model, program = self.draft if draft else self.model
        config = CacheConfig(sessions.model_facts(model), capacity=400, bits=None)
        mine = getattr(sessions, f"make_{kind}_session")(model, config)
        other = getattr(exported, f"make_{kind}_session")(config)
        loaded = exported.Loaded(program, other.key)
        return Paired(mine, other, loaded, limit=self.limit, end=self.end)


def with_program(model: Any, config: dict[str, Any]) -> tuple[Any, Any]:
    llama = Llama(LlamaConfig.read(config)).eval()
    llama.load_state_dict({name: torch.tensor(w) for name, w in weights_of(model).items()})
    return model, export_llama(llama).module()


@cache
def small() -> Weights:
    """Random ones: four heads over two, an output layer of its own."""

    def encode(text: str) -> Text:
        return [3 + ord(character) % 120 for character in text[:8]]

    model = tiny_model()
    config = vars(model.args)
    draft = tiny_model()
    nn.quantize(draft, bits=8)
    pair, worse = with_program(model, config), with_program(draft, config)
    return Weights(pair, worse, 1e-5, encode, own_loop.END)


@cache
def default() -> Weights:
    """The default model. Its scores are so far apart that what MLX computes in float32 is itself
    2e-5 of the deviation from float64: so this is tier 2 of exactness."""
    models = []
    for _ in range(2):
        model, tokenizer = load(str(DEFAULT_MODEL))[:2]
        model.set_dtype(mx.float32)
        models.append(model)
    nn.quantize(models[1], bits=4)
    pair, worse = (with_program(model, vars(model.args)) for model in models)

    def encode(text: str) -> Text:
        return list(tokenizer.encode(f"<|user|>{text}<|end|><|assistant|>"))

    return Weights(pair, worse, 1e-4, encode)


@pytest.fixture(scope="module", params=[small, default])
def weights(request: pytest.FixtureRequest) -> Weights:
    made: Weights = request.param()
    return made


FACTS = ("My cat is called Biscuit.", "The meeting is on Friday.", "Marta lives in Lisbon.")
QUESTIONS = ("What is my cat called?", "When is the meeting?", "Where does Marta live?")


def told(weights: Weights) -> own_loop.Texts:
    return {n: weights.encode(fact) for n, fact in enumerate(FACTS, 1)}


def asked(weights: Weights) -> own_loop.Texts:
    return {n: weights.encode(question) for n, question in enumerate(QUESTIONS, 1)}


def all_told(weights: Weights) -> Text:
    return [token for text in told(weights).values() for token in text]


def seen(session: Paired, what: str) -> None:
    print(f"{what}: {session.steps} steps, at most {session.apart:.1e} of the deviation apart")


def test_plain_decode(weights: Weights) -> None:
    session = weights.open("decode")

    first = own_loop.plain_decode(session, all_told(weights))
    again = own_loop.plain_decode(session, first[-1:] + asked(weights)[1])

    assert session.steps == len(first) + len(again) > 2
    seen(session, "decode")


def test_sequences_side_by_side(weights: Weights) -> None:
    session = weights.open("seq")

    answers = own_loop.streams(session, told(weights))
    again = own_loop.streams(
        session, {n: answers[n][-1:] + text for n, text in asked(weights).items()}
    )

    assert [text[-1] for text in (*answers.values(), *again.values())] == [own_loop.END] * 6
    seen(session, "streams")


def test_a_trunk_and_its_branches(weights: Weights) -> None:
    session = weights.open("seq")

    answers = own_loop.fork(session, all_told(weights), asked(weights))

    assert [*answers] == [1, 2, 3]
    assert session.cache.seq_len(0) == 0
    kept = [n for n in answers if session.cache.seq_len(n)]
    assert len(kept) == 1
    seen(session, "fork")


def test_somebody_joins(weights: Weights) -> None:
    session = weights.open("seq")
    running = {n: told(weights)[n] for n in (1, 2)}

    answers = own_loop.admit(session, running, all_told(weights) + asked(weights)[3], 2)

    assert [*answers] == [1, 2, 3]
    assert answers[3]
    seen(session, "admit")


def test_what_is_taken_back_is_said_again(weights: Weights) -> None:
    session = weights.open("seq")
    prompt = all_told(weights) + asked(weights)[2]

    answers = own_loop.take_back(session, prompt, len(told(weights)[1]))

    assert len(answers) == 3
    assert session.cache.seq_len(2) == 0
    seen(session, "take back")


def speculated(weights: Weights) -> tuple[Text, int]:
    target, draft = weights.open("tree"), weights.open("tree", draft=True)
    answer, forwards = own_loop.speculate(target, draft, all_told(weights) + asked(weights)[3])
    seen(target, "target")
    seen(draft, "draft")
    assert target.steps == forwards + 1
    assert draft.steps == forwards * 4 + 1
    return answer, forwards


def test_a_draft_proposes_trees_and_the_target_commits(weights: Weights) -> None:
    answer, forwards = speculated(weights)

    assert len(answer) > forwards > 1
    if weights.end is None:
        text = all_told(weights) + asked(weights)[3]
        assert own_loop.plain_decode(weights.open("decode"), text) == answer


@pytest.mark.parametrize("seed", BUGS, ids=str)
def test_each_bug_is_seen_in_the_logits(seed: Bug) -> None:
    weights = small()

    with seeded(seed), pytest.raises(AssertionError, match="apart"):
        speculated(weights)
