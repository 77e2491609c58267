"""How long chunks are beside who decodes, by what they cost."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvactors.core.cache.spec import KVForm, ModelCacheSpec
from kvactors.core.schedule.request import Request
from kvactors.core.schedule.sampling import Sampling
from kvactors.core.schedule.scheduler import Scheduler
from kvactors.core.testing.engines import make_request


def prompt_of(tokens: int, cached: int = 0, *, stream: bool = False) -> Request:
    request = make_request("agent", [], [1] * (cached + tokens + 1), Sampling())
    request.kept = request.cached = cached
    request.stream = stream
    return request


FORM = KVForm(0, ModelCacheSpec((), 10, 4096))
STREAMED, ASKED = prompt_of(0, stream=True), prompt_of(0)


def prefill_beside(step: float, tokens: int, cached: int) -> list[tuple[int, float]]:
    """Tokens and seconds of the chunks of a prompt with so many `cached` tokens beside a stream
    whose steps take so many seconds: a chunk takes longer the deeper it is, as on a CPU."""
    scheduler, prompt, chunks = Scheduler(), prompt_of(tokens, cached), []
    for _ in range(20):
        scheduler.record_decode(step)
    while prompt.remaining:
        for chunk in scheduler.plan([prompt], [STREAMED]).prefill:
            depth, size = prompt.cached, chunk.tokens
            seconds = 0.002 + depth * 4.2e-6 + size * (570e-6 + depth * 0.23e-6)
            chunks.append((size, seconds))
            prompt.cached += size
            scheduler.record_prefill(size, seconds, decoding=True)
        scheduler.record_decode(step)
    return chunks


def test_who_is_streamed_waits_no_longer_the_deeper_the_prompt_of_another_gets() -> None:
    chunks = prefill_beside(0.0125, 8000, 0)

    late = sorted(seconds for _, seconds in chunks)
    assert late[-len(chunks) // 50] + 0.0125 < 5.5 * 0.0125
    # As much as that allows.
    assert late[len(chunks) // 2] + 0.0125 > 4 * 0.0125


def test_where_not_even_a_few_tokens_keep_the_latency_the_prefill_gets_on() -> None:
    chunks = prefill_beside(0.0125, 2000, 16_000)

    assert {size for size, _ in chunks[:-1]} == {32}


@given(
    st.floats(1e-4, 1e-2),
    st.integers(0, 48),
    st.floats(1e-3, 0.05),
    st.lists(st.booleans(), min_size=1, max_size=30),
)
@example(0.00276, 40, 0.0234375, [False])
def test_chunks_of_any_cost_keep_the_latency_or_are_the_least_that_gets_on(
    token: float, overhead: int, step: float, streams: list[bool]
) -> None:
    scheduler = Scheduler()
    for _ in range(20):
        scheduler.record_decode(step)

    # Who is streamed comes and goes.
    for stream in [*streams, *[True] * 40]:
        plan = scheduler.plan([prompt_of(4000)], [STREAMED if stream else ASKED])
        for chunk in plan.prefill:
            seconds = (chunk.tokens + overhead) * token
            scheduler.record_prefill(chunk.tokens, seconds, decoding=True)
        scheduler.record_decode(step)

    latency = max(min(0.1, 5 * step), 3.5 * step)
    # The scheduler takes it that any chunk takes as long as 12 tokens more: of 8 that are longer
    # than they may be, chunks of 32 say so only where they are longer by more than so much.
    unseen = (8 + overhead) / (8 + 12) * (32 + 12) / (32 + overhead)
    assert chunk.tokens == 32 or seconds < max(1.3, unseen) * latency


@pytest.mark.parametrize(("decoding", "together"), [([], 4), ([ASKED], 4), ([STREAMED], 1)])
def test_prompts_behind_little_share_a_forward_unless_somebody_reads_meanwhile(
    decoding: list[Request], together: int
) -> None:
    scheduler, prompts = Scheduler(), [prompt_of(48, 1000) for _ in range(4)]
    for prompt in prompts:
        prompt.form = FORM
    scheduler.plan(prompts, [])
    # A prompt takes as long as a reader may wait.
    scheduler.record_prefill(48, 0.1, decoding=False)
    scheduler.record_decode(0.03)

    plan = scheduler.plan(prompts, decoding)

    assert len(plan.prefill) == together
