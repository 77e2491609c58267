"""A seed that a client gives, and none."""

import openai
import pytest


def told(client: openai.OpenAI, seed: int | None, **filters: float) -> str:
    """An answer that hardly depends on what is likely."""
    answer = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": "Tell me a story"}],
        seed=seed,
        temperature=2,
        max_tokens=12,
        extra_body=filters,
    )
    return answer.choices[0].message.content or ""


def test_the_same_question_with_the_same_seed_has_the_same_answer(texts: openai.OpenAI) -> None:
    first = told(texts, 42)

    assert [told(texts, 42) for _ in range(3)] == [first] * 3
    assert told(texts, 43) != first


def test_no_answer_of_several_has_a_seed_beyond_the_last(texts: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="seed must be at most"):
        texts.completions.create(model="default", prompt="?", seed=2**64 - 1, n=2, max_tokens=2)
    with pytest.raises(openai.BadRequestError, match="seed must be at most"):
        texts.chat.completions.create(
            model="default",
            messages=[{"role": "user", "content": "?"}],
            seed=2**64 - 1,
            n=2,
            max_tokens=2,
        )


def test_the_narrowest_nucleus_has_one_answer(texts: openai.OpenAI) -> None:
    assert len({told(texts, None, top_p=0) for _ in range(5)}) == 1


@pytest.mark.parametrize("narrow", [{"top_k": 1}, {"min_p": 1.0}], ids=str)
def test_filters_that_only_this_engine_has_are_no_less_narrow(
    texts: openai.OpenAI, narrow: dict[str, float]
) -> None:
    said = {
        texts.completions.create(
            model="default", prompt="Once", temperature=2, max_tokens=12, extra_body=narrow
        )
        .choices[0]
        .text
        for _ in range(5)
    }

    assert len(said) == 1
    assert len({told(texts, None, **narrow) for _ in range(5)}) == 1


def test_without_a_seed_each_answer_is_another(texts: openai.OpenAI) -> None:
    assert len({told(texts, None) for _ in range(5)}) > 1
    model = texts.models.list().data[0].id
    said = {
        texts.completions.create(
            model=model, prompt="Tell me a story", temperature=2, max_tokens=12
        )
        .choices[0]
        .text
        for _ in range(5)
    }
    assert len(said) > 1
