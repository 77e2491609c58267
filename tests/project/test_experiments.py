"""What lines and experiments compare with is at its best, and what they share is as told."""

from collections.abc import Callable
from contextlib import closing
from math import inf

import pytest

from kvactors.bench.check.kinds import Kind
from kvactors.bench.experiments import lengths, staggered
from kvactors.bench.experiments.experiment import begin
from kvactors.bench.experiments.retrieval import Passages
from kvactors.bench.experiments.uncached import uncached
from kvactors.bench.peers import Bare, empty_float, fastest, fill, single_steps
from kvactors.bench.setup import QUICK, Setup
from kvactors.bench.table.bounds import Rates, decode_bound, prefill_bound, show_bounds
from kvactors.core.testing.models import grid, tiny_llama

TOLD = (
    "Marta lives in Lisbon.",
    "The code of the garage is 4711.",
    "The meeting was moved to Friday.",
    'He said "NOT now" AND left* (at 5).',
)


@pytest.mark.parametrize(
    ("question", "top", "found"),
    [
        ("What is the garage's code?", 1, [TOLD[1]]),
        # By stems, and in the order in which they were told.
        ("When do they meet, and where does Marta live?", 2, [TOLD[0], TOLD[2]]),
        # Words of the index's own language are words.
        ('Who said "NOT now" AND left* (at 5)?', 1, [TOLD[3]]),
        ("Quite unrelated?", 3, []),
    ],
)
def test_passages_are_found_by_the_words_of_a_question(
    question: str, top: int, found: list[str]
) -> None:
    with closing(Passages(TOLD)) as passages:
        assert passages.best(question, top) == found


def test_a_prompt_is_read_alike_in_chunks_of_any_size() -> None:
    # In floats: at 4 bits, what is in a chunk is attended before it is packed.
    setup = Setup(QUICK, grid, kv_bits=None)
    prompt = setup.prompt(100)

    tokens = [Bare(setup.loaded, prompt, chunk).step(8)[1] for chunk in (None, 7, 64, 200)]

    assert tokens == [tokens[0]] * 4


@pytest.mark.parametrize("tied", [False, True])
def test_bounds_count_the_logits_of_one_token_and_no_table_of_which_a_row_is_read(
    tied: bool,
) -> None:
    # Attention costs nothing at these rates.
    rates = Rates(matmul=1.0, read=1.0, scores=inf, values=inf)
    small, large = (
        Setup(QUICK, tiny_llama(tie_word_embeddings=tied, vocab_size=size)) for size in (128, 1128)
    )

    def more(bound: Callable[[Setup], float]) -> float:
        return bound(large) - bound(small)

    row = 128
    assert more(lambda setup: decode_bound(setup, rates, 1, 10)) == 1000 * row * 4
    assert more(lambda setup: prefill_bound(setup, rates, 10)) == 2 * 1000 * row
    assert more(lambda setup: prefill_bound(setup, rates, 1000)) == 2 * 1000 * row


def test_a_model_in_which_nothing_attends_has_no_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    recurrent = Kind("recurrent (SSM)", "mamba2")

    assert show_bounds(Setup(QUICK, recurrent.build)) == {}
    assert "not for this model" in capsys.readouterr().out


def test_the_peer_has_caches_as_mlx_lm_makes_them_and_begins_each_run_behind_its_prompt() -> None:
    model, _ = Kind("sliding window", "gemma3_text").build()
    prompt = [token % 128 for token in range(1, 200)]
    cache = empty_float(model)
    answered = fill(model, prompt, cache)

    steps = single_steps(model, prompt, quantize=False)
    runs = [steps(8)[1] for _ in range(2)]

    # Of a layer with a window, what has left it.
    assert [type(layer) for layer in cache] == [type(layer) for layer in model.make_cache()]
    assert not all(layer.is_trimmable() for layer in cache)
    assert runs == [list(uncached(model, prompt)([*prompt, answered, 1], 9).tokens)] * 2


def test_what_a_process_pays_for_at_first_is_charged_to_no_choice_of_a_peer() -> None:
    began = iter([9.0])

    assert fastest((2, 4, 6), lambda choice: next(began, float(choice))) == 2


def test_without_a_cache_a_turn_ends_where_the_model_ends_it() -> None:
    setup = Setup(QUICK, tiny_llama())
    prompt = setup.prompt(20)

    whole = uncached(setup.model, prompt)(prompt, 8)
    cut = uncached(setup.model, prompt, whole.tokens[3:4])(prompt, 8)

    assert len(whole.tokens) == 8
    assert 0 < whole.first_s <= whole.total_s
    assert cut.tokens == whole.tokens[: whole.tokens.index(whole.tokens[3])]


def test_four_bits_take_what_the_formula_says(capsys: pytest.CaptureFixture[str]) -> None:
    lengths.main(["--quick"])

    rows = [line.split() for line in capsys.readouterr().out.splitlines()[-3:-1]]
    assert [row[0] for row in rows] == ["64", "128"]
    assert all(float(row[3]) == pytest.approx(float(row[4]), rel=0.02) for row in rows)


@pytest.mark.parametrize("quick", [False, True])
def test_a_random_model_is_what_is_said_of_it_and_a_small_one_where_it_is_quick(
    quick: bool,
) -> None:
    asked = begin("own", "", ["--quick"] * quick)

    shape = asked.setup.source()[0].args

    assert asked.model == (
        f"random llama, float32, {shape.num_hidden_layers} layers, hidden {shape.hidden_size}, "
        f"{shape.num_attention_heads} heads, {shape.num_key_value_heads} KV head"
        f"{'s' * (shape.num_key_value_heads > 1)}, head dim {shape.head_dim}, "
        f"feed-forward {shape.intermediate_size}, vocabulary {shape.vocab_size:,}"
    )
    assert (shape.hidden_size < 128) == quick


def test_an_experiment_that_loads_its_own_model_takes_no_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert begin("own", "", [], None, "default").model == "default"
    with pytest.raises(SystemExit):
        begin("own", "", ["--model", "other"], None, "default")
    assert "--model" in capsys.readouterr().err


def test_who_comes_later_waits_from_then_on() -> None:
    row = staggered.Served(2.0, 3.0, 4.0, 5.0, 6.0)

    assert staggered.row_of("interleaved", row) == {
        "how": "interleaved",
        "B_arrives_s": 2.0,
        "A_first_token_s": 3.0,
        "B_first_token_s": 3.0,
        "both_s": 6.0,
        "A_done_s": 4.0,
        "B_done_s": 4.0,
        "all_done_s": 6.0,
    }
