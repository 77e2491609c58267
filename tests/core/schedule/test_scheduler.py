"""The scheduler, without a model: chunks, packing, ageing, and the share of decode."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvactors.core.cache.spec import NO_FORM
from kvactors.core.schedule.request import Request, StopMatcher
from kvactors.core.schedule.sampling import Sampling
from kvactors.core.schedule.scheduler import Scheduler, SchedulerConfig

FORM = replace(NO_FORM, spec=replace(NO_FORM.spec, context=4096))


def request(
    tokens: int, arrival: int = 0, cached: int = 0, priority: int = 0, stream: bool = False
) -> Request:
    return Request(
        agent_id=f"{arrival}",
        turn=0,
        tokens=[1] * (tokens + cached + 1),
        prompt=tokens + cached + 1,
        sampling=Sampling(),
        generate=True,
        stop_tokens=frozenset(),
        matcher=StopMatcher((), lambda tokens: ""),
        fresh=tokens,
        priority=priority,
        stream=stream,
        kept=cached,
        cached=cached,
        arrival=arrival,
        form=FORM,
    )


def seconds_of(tokens: int) -> float:
    """Of a chunk: just under a millisecond a token, and as long as 12 of them whatever it has."""
    return (tokens + 12) * 0.00098


def paced(**config: float) -> Scheduler:
    """One that has seen such chunks of short prompts, and steps of ten milliseconds."""
    scheduler = Scheduler(SchedulerConfig(**config))  # type: ignore[arg-type]
    run(scheduler, [request(1000)], [ASKED], 1)
    scheduler.prefill_ended()
    return scheduler


STREAMED, ASKED = request(0, stream=True), request(0)


def run(
    scheduler: Scheduler, prefilling: list[Request], decoding: list[Request], steps: int
) -> list[str]:
    """A letter per tick: the sizes of chunks, or d for a tick that only decodes."""
    log = []
    for _ in range(steps):
        plan = scheduler.plan([r for r in prefilling if r.remaining], decoding)
        sizes = [chunk.tokens for chunk in plan.prefill]
        for chunk in plan.prefill:
            chunk.request.cached += chunk.tokens
        if sizes:
            log.append("+".join(map(str, sizes)))
            scheduler.record_prefill(sum(sizes), seconds_of(sum(sizes)), decoding=plan.decode)
        elif plan.decode:
            log.append("d")
        if plan.decode:
            scheduler.record_decode(0.01)
    return log


def test_chunks_grow_from_256_to_the_table_while_nobody_decodes() -> None:
    log = run(Scheduler(), [request(40_000)], [], 100)

    sizes = [int(size) for size in log]
    assert sizes[:4] == [256, 512, 1024, 2048]
    assert (max(sizes) <= 4096, sizes[-1] <= 512, sum(sizes)) == (True, True, 40_000)


def test_while_somebody_decodes_a_chunk_fits_the_target_latency() -> None:
    log = run(Scheduler(SchedulerConfig(target_latency=0.1)), [request(4000)], [STREAMED], 200)

    sizes = [int(size) for size in log if size != "d"]
    assert (sizes[0], max(sizes) <= 90, sum(sizes)) == (32, True, 4000)


def test_where_nobody_reads_tokens_as_they_come_a_short_prompt_goes_first() -> None:
    log = run(paced(), [request(200), request(300, 1), request(1001, 2)], [ASKED], 10)

    # The last one takes longer than a second.
    assert log[:3] == ["200", "300", "72"]


def test_a_short_prompt_waits_for_those_whose_tokens_are_read_as_they_come() -> None:
    log = run(paced(target_latency=0.1), [request(200)], [ASKED, STREAMED], 5)

    assert log == ["72", "72", "56", "d", "d"]


def test_who_is_streamed_waits_for_five_of_its_steps_where_nothing_else_was_asked() -> None:
    assert run(paced(), [request(200)], [STREAMED], 3) == ["24", "24", "24"]


def test_steps_that_were_only_launched_are_no_quick_ones() -> None:
    scheduler = paced()
    for _ in range(20):
        scheduler.record_decode(0.0)

    assert run(scheduler, [request(200)], [STREAMED], 1) == ["24"]


def test_the_last_few_tokens_of_a_prompt_go_with_the_ones_before() -> None:
    assert run(paced(target_latency=0.1), [request(152)], [STREAMED], 3) == ["72", "80", "d"]


def test_a_short_prompt_waits_for_turns_that_are_more_urgent() -> None:
    assert run(paced(), [request(200, priority=-1)], [ASKED], 2) == ["72", "72"]


def test_a_long_prompt_that_was_passed_over_for_long_gets_as_much_as_a_short_one() -> None:
    scheduler, long = paced(max_wait=8), request(9000)
    for arrival in range(8):
        run(scheduler, [long, request(500, arrival + 1)], [ASKED], 1)

    assert run(scheduler, [long, request(500, 9)], [ASKED], 1) == ["992"]


def test_the_pace_of_short_prompts_says_nothing_about_a_deep_one() -> None:
    assert run(paced(), [request(500, cached=16_000)], [ASKED], 1) == ["32"]


def test_a_few_tokens_that_took_long_do_not_shorten_the_next_chunk() -> None:
    scheduler = paced(target_latency=0.1)
    scheduler.plan([request(1)], [])
    scheduler.record_prefill(1, 0.09, decoding=False)

    assert run(scheduler, [request(900)], [STREAMED], 1) == ["72"]


def test_prompts_that_end_with_each_chunk_still_owe_the_others_their_steps() -> None:
    scheduler = Scheduler(SchedulerConfig(target_latency=0.05))
    scheduler.record_decode(0.01)
    scheduler.plan([request(32)], [STREAMED])
    scheduler.record_prefill(32, 0.2, decoding=True)

    scheduler.prefill_ended()

    assert not scheduler.plan([request(32, 1)], [STREAMED]).prefill


def test_a_long_target_latency_holds_where_nobody_reads_too() -> None:
    assert run(paced(target_latency=3.0), [request(2000)], [ASKED], 1) == ["2000"]


def test_a_slow_chunk_is_followed_by_as_many_decode_steps_as_the_target_asks_for() -> None:
    scheduler = Scheduler(SchedulerConfig(target_latency=0.05))
    long = request(1000)
    scheduler.record_decode(0.01)
    scheduler.plan([long], [STREAMED])
    scheduler.record_prefill(32, 0.2, decoding=True)  # five times what 0.05 - 0.01 leaves

    owed = 0
    while not scheduler.plan([long], [STREAMED]).prefill:
        scheduler.record_decode(0.01)
        owed += 1

    assert owed == 5


def test_the_shortest_remaining_prompt_goes_first_and_priorities_before_it() -> None:
    short, long, urgent = request(100, 1), request(3000, 0), request(2000, 2, priority=1)

    order: list[Request] = []
    scheduler = Scheduler()
    while pending := [r for r in (long, short, urgent) if r.remaining]:
        chunk = scheduler.plan(pending, []).prefill[0]
        if not order or order[-1] is not chunk.request:
            order.append(chunk.request)
        chunk.request.cached += chunk.tokens

    assert order == [urgent, short, long]


def test_ageing_lets_no_prompt_starve() -> None:
    scheduler = Scheduler(SchedulerConfig(max_wait=8))
    starving = request(5000, arrival=0)

    for tick in range(1, 40):
        fresh = request(300, arrival=tick)
        plan = scheduler.plan([starving, fresh], [])
        if plan.prefill[0].request is starving:
            break

    assert tick == 9


def test_prompts_that_waited_long_do_not_pass_one_that_is_more_urgent() -> None:
    scheduler = Scheduler(SchedulerConfig(max_wait=8))
    crowd = [request(3000, n, priority=-8) for n in range(16)]
    run(scheduler, crowd, [], 12)
    assert max(prompt.passed_over for prompt in crowd if prompt.remaining) > 8

    urgent = request(2000, 99)

    assert scheduler.plan([*crowd, urgent], []).prefill[0].request is urgent


def test_an_urgent_prompt_does_not_wait_for_less_urgent_turns_that_are_streamed() -> None:
    watched = [request(0, n, priority=-8, stream=True) for n in range(3)]
    scheduler = paced()
    run(scheduler, [request(200, priority=-8)], watched, 1)

    assert run(scheduler, [request(500)], watched, 2) == ["500", "d"]
    assert run(scheduler, [request(500)], [*watched, STREAMED], 1) == ["24"]


def test_a_less_urgent_prompt_does_not_share_a_forward_with_an_urgent_one() -> None:
    crowd = [request(40, n, priority=-1) for n in range(3)]

    plan = Scheduler().plan([*crowd, request(50, 3), request(45, 4)], [])

    assert sorted(chunk.tokens for chunk in plan.prefill) == [45, 50]


def test_prompts_share_a_forward_as_long_as_it_keeps_the_latency() -> None:
    scheduler = Scheduler()
    deep = [request(48, n, cached=3000) for n in range(4)]
    assert len(scheduler.plan(deep, []).prefill) == 4

    # A row of 48 tokens takes as long as the latency allows.
    scheduler.record_prefill(48, 0.1, decoding=False)

    assert len(scheduler.plan(deep, []).prefill) == 1


def test_short_prompts_share_a_forward_and_longer_ones_do_not() -> None:
    plan = Scheduler().plan([request(n, i) for i, n in enumerate((60, 50, 64, 40, 900))], [])

    assert sorted(chunk.tokens for chunk in plan.prefill) == [40, 50, 60, 64]


def test_a_prompt_at_the_end_of_its_context_is_not_padded_beyond_it() -> None:
    plan = Scheduler().plan([request(40, 0, cached=4040), request(60, 1), request(30, 2)], [])

    assert sorted(chunk.tokens for chunk in plan.prefill) == [30, 40]


@pytest.mark.parametrize(("other", "chunk"), [(30, 30), (50, 40)])
def test_a_prompt_that_has_begun_keeps_its_own_row(other: int, chunk: int) -> None:
    begun = request(60, 1)
    begun.cached += 20
    begun.kept = 0

    plan = Scheduler().plan([request(other, 0), begun], [])

    assert [part.tokens for part in plan.prefill] == [chunk]


def test_reproducible_chunks_end_at_absolute_multiples_of_256() -> None:
    scheduler = Scheduler(SchedulerConfig(reproducible=True))
    log = run(scheduler, [request(1000, cached=100)], [STREAMED], 400)

    assert [size for size in log if size != "d"] == ["156", "256", "256", "256", "76"]


@given(
    st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 9000)), min_size=1, max_size=12),
    st.lists(st.sampled_from([STREAMED, ASKED]), max_size=5),
)
def test_every_plan_is_within_bounds_and_everything_ends(
    prompts: list[tuple[int, int]], decoding: list[Request]
) -> None:
    scheduler = Scheduler()
    requests = [request(n, i, cached) for i, (n, cached) in enumerate(prompts)]

    for _ in range(20_000):
        pending = [r for r in requests if r.remaining]
        if not pending:
            break
        plan = scheduler.plan(pending, decoding)
        assert plan.prefill or plan.decode
        for chunk in plan.prefill:
            assert 1 <= chunk.tokens <= min(4096, chunk.request.remaining)
            chunk.request.cached += chunk.tokens
        if plan.prefill:
            scheduler.record_prefill(plan.prefill[0].tokens, 0.02, decoding=plan.decode)
        if plan.decode:
            scheduler.record_decode(0.01)

    assert not any(r.remaining for r in requests)


@pytest.mark.parametrize("decoding", [[], [STREAMED]])
def test_without_prompts_a_plan_only_decodes(decoding: list[Request]) -> None:
    plan = Scheduler().plan([], decoding)

    assert (plan.prefill, plan.decode) == ((), bool(decoding))
