"""Where drafts come from, and how long they are."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seeded import bug, seeded

from kvactors import Grammar, InvalidGrammar, Sampling
from kvactors.core.schedule.guide import Guide
from kvactors.core.schedule.speculation.acceptance import (
    LEAST_CHANCE,
    MEASURED,
    Acceptance,
    Costs,
    Draft,
    share_out,
)
from kvactors.core.schedule.speculation.chain import Chains
from kvactors.core.schedule.speculation.speculation import Speculation, SpeculationConfig
from kvactors.core.schedule.speculation.texts import SUFFIX, Follower, Text
from kvactors.core.testing.engines import make_request
from kvactors.core.testing.models import tiny_model

# Ids whose bytes stand within those of others too.
IDS = st.lists(st.sampled_from([0, 1, 2, 256, 257, 65536]), max_size=60)
GOOD = 0.9
WRITTEN = Sampling(max_tokens=9, grammar=Grammar.regex("[a-f]{4,9}"))


def longest(text: list[int], ids: list[int]) -> int:
    """How many of the last `ids` stand somewhere in a text, by comparing all of them."""
    most = min(len(text), len(ids), SUFFIX)
    for length in range(most, 0, -1):
        wanted = ids[-length:]
        if any(text[at : at + length] == wanted for at in range(len(text) - length + 1)):
            return length
    return 0


@given(IDS, IDS)
def test_the_end_of_a_turn_is_found_where_it_stood_last(text: list[int], ids: list[int]) -> None:
    found = Text()
    found.add(text)

    length, place = found.find(ids, len(text))

    assert bool(length) == bool(longest(text, ids))
    # Suffixes are halved until one is found: at least half of the longest is.
    assert 2 * length > longest(text, ids) or not length
    assert text[place - length : place] == ids[len(ids) - length :] if length else place == 0


@given(IDS)
def test_a_turn_is_followed_as_if_it_were_looked_for_anew(tokens: list[int]) -> None:
    text = Text()
    follower = Follower(text, own=True)
    for end in range(1, len(tokens) + 1):
        expected = follower.ahead(1)
        text.add(tokens[end - 1 : end])
        follower.follow(tokens[:end])
        if expected == tokens[end - 1 : end]:
            assert follower.length > 1
        drafted = follower.ahead(4)
        assert bool(drafted) == bool(longest(tokens[: end - 1], tokens[:end]))


def test_what_repeats_itself_is_drafted_beyond_its_end() -> None:
    text = Text()
    text.add([7, 1, 2, 3, 1])
    follower = Follower(text, own=True)

    follower.follow([7, 1, 2, 3, 1])

    assert follower.ahead(7) == [2, 3, 1, 2, 3, 1, 2]


def test_a_full_text_forgets_its_beginning_and_nobody_is_lost() -> None:
    text = Text(most=10)
    text.add([1, 2, 3, 4, 5])
    follower = Follower(text, own=False)
    follower.follow([2, 3])
    assert follower.ahead(2) == [4, 5]

    text.add([9] * 8)

    assert len(text) == 5
    assert follower.ahead(2) == []
    follower.follow([2, 3, 9])
    assert follower.length == 1


def test_acceptance_is_learned_by_length_and_source() -> None:
    acceptance = Acceptance()
    before = acceptance.chance("own", 5)
    for _ in range(2000):
        acceptance.note("own", 5, right=True)
        acceptance.note("others", 5, right=False)

    assert acceptance.chance("own", 5) > 0.97 > before > acceptance.chance("others", 5)
    assert acceptance.chance("own", 1) < before
    chances = [Acceptance().chance("own", length) for length in range(1, 30)]
    assert all(shorter <= longer for shorter, longer in pairwise(chances))


def draft(chance: float, tokens: int = 15) -> Draft:
    return Draft([1] * tokens, [chance] * tokens, "own")


def measured(more: float) -> Costs:
    """A token more of one row costs so much of a plain step."""
    costs = Costs()
    costs.note_plain(1, 1.0)
    for _ in range(50):
        costs.note(1, 2, 2, 1.0 + 2 * more)
    return costs


def test_a_draft_model_is_asked_for_as_much_as_its_steps_are_worth() -> None:
    costs = measured(0.1)
    free, cheap, dear = (Draft(range(15), [0.9] * 15, "model", make) for make in (0.0, 0.3, 0.9))

    shares = [share_out([each], 1, costs, least=1.05)[0] for each in (free, cheap, dear)]

    assert shares[0] > shares[1] > shares[2] == 0


def test_one_busy_moment_does_not_end_what_a_draft_model_is_worth() -> None:
    costs = Costs()
    for _ in range(MEASURED):
        assert not costs.known(1)
        costs.note_plain(1, 1.0)
        costs.note_draft(1, 1, 4, 1.2)
    before = costs.draft(1)
    assert costs.known(1)

    costs.note_draft(1, 1, 4, 40.0)
    assert before < costs.draft(1) < 1.2 * before
    for _ in range(100):
        costs.note_draft(1, 1, 4, 40.0)
    assert costs.draft(1) > 5


def test_good_drafts_are_long_and_bad_ones_are_not_fed() -> None:
    costs = measured(0.1)

    assert share_out([draft(0.97)], 1, costs, least=1.05)[0] > 8
    assert share_out([draft(0.05)], 1, costs, least=1.05) == [0]
    assert share_out([draft(0.3)], 1, measured(0.5), least=1.05) == [0]
    several = share_out([draft(0.95), draft(0.2), Draft((), (), "own")], 3, costs, least=1.05)
    assert several[0] > several[1]
    assert several[2] == 0


@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=8), st.floats(0.13, 1.0))
def test_hardly_any_other_share_is_worth_more(chances: list[float], more: float) -> None:
    """One token fewer of any draft, or another length of the only one."""
    drafts = [draft(chance, 6) for chance in chances]
    costs = measured(more)

    def worth(taken: list[int]) -> float:
        sums = [sum(c**n for n in range(1, t + 1)) for c, t in zip(chances, taken, strict=True)]
        cost = costs.of(len(drafts), sum(taken), max(taken))
        return (len(drafts) + sum(sums)) / len(drafts) / cost

    taken = share_out(drafts, len(drafts), costs, least=0.0)

    for index, count in enumerate(taken):
        if count:
            fewer = [n - (i == index) for i, n in enumerate(taken)]
            assert worth(taken) >= 0.95 * worth(fewer)
    assert worth(taken) >= worth([0] * len(drafts))
    if len(drafts) == 1:
        lengths = [n for n in range(7) if chances[0] ** n >= LEAST_CHANCE or not n]
        assert worth(taken) >= max(worth([length]) for length in lengths) - 1e-9


def test_what_every_check_costs_is_told_from_what_each_token_costs() -> None:
    costs = Costs()
    costs.note_plain(1, 1.0)
    for number in range(200):
        more = 1 + number % 8
        costs.note(1, more, more, 1.5 + 0.1 * more)

    for more in (1, 4, 8):
        assert costs.of(1, more, more) == pytest.approx(1.5 + 0.1 * more, abs=0.05)
    assert costs.of(1, 0, 0) == 1.0
    assert share_out([draft(0.95, 1)], 1, costs, least=1.05) == [1]
    assert share_out([draft(0.95, 6)], 1, costs, least=1.05) == [6]


def test_a_busy_time_does_not_turn_it_off_for_ever() -> None:
    costs = measured(0.1)
    costs.note(1, 1, 1, 100.0)
    assert share_out([draft(GOOD)], 1, costs, least=1.05)[0] > 0
    for _ in range(100):
        costs.note(1, 1, 1, 100.0)
    assert share_out([draft(GOOD)], 1, costs, least=1.05) == [0]

    for _ in range(1000):
        costs.note_plain(1, 1.0)

    assert share_out([draft(GOOD)], 1, costs, least=1.05)[0] > 0


def ended_turn(speculation: Speculation, said: list[int]) -> None:
    request = make_request("other", [], [50, 51], Sampling(max_tokens=99))
    speculation.drafts([request])
    for token in said:
        request.tokens.append(token)
        speculation.hear(request)
    speculation.ended(request)


@pytest.mark.parametrize("share", [True, False])
def test_what_others_said_is_drafted_unless_nothing_is_shared(share: bool) -> None:
    speculation = Speculation(SpeculationConfig(share=share))
    ended_turn(speculation, list(range(60, 90)))
    request = make_request("a", [], [1, 2, *range(60, 72)], Sampling(max_tokens=40))

    (found,) = speculation.drafts([request]).values() or ([],)

    assert found[:3] == ([72, 73, 74] if share else [])
    assert speculation.sources == ({request: "others"} if share else {})


def test_a_draft_of_others_where_nothing_is_shared_is_seen() -> None:
    @bug(SpeculationConfig, "__init__")
    def always_shares(true: object) -> object:
        return lambda config, share=True: true(config, True)  # type: ignore[operator]

    with seeded(always_shares), pytest.raises(AssertionError):
        test_what_others_said_is_drafted_unless_nothing_is_shared(share=False)


def test_what_stands_between_two_replies_is_never_drafted() -> None:
    speculation = Speculation(SpeculationConfig())
    for _ in range(3):
        ended_turn(speculation, [60, 61, 62])
    request = make_request("a", [], [9, 60, 61], Sampling(max_tokens=40))

    assert speculation.drafts([request])[request] == [62]


def test_no_draft_goes_beyond_the_last_token_of_a_turn() -> None:
    speculation = Speculation(SpeculationConfig())
    request = make_request("a", [], [1, 2, 3, 4, 5, 6] * 6, Sampling(max_tokens=4))

    assert len(speculation.drafts([request])[request]) == 3


def gives_up(_true: object) -> object:
    """What a grammar does on the way."""

    def raises(*_: object) -> None:
        raise InvalidGrammar("the grammar cannot go on: too much to lex")

    return raises


def test_a_turn_whose_grammar_gives_up_has_no_draft_and_harms_no_other() -> None:
    speculation = Speculation(SpeculationConfig())
    said = [ord(letter) for letter in "abcdef" * 6]
    formed, free = (
        make_request(name, [], said, sampling)
        for name, sampling in (("formed", WRITTEN), ("free", Sampling(max_tokens=9)))
    )
    assert formed in speculation.drafts([formed, free])

    with seeded(bug(Guide, "takes")(gives_up)):
        assert list(speculation.drafts([formed, free])) == [free]


def test_a_draft_model_says_nothing_while_a_grammar_gives_up_and_goes_on_behind_it() -> None:
    chains = Chains(tiny_model(), 128, lambda *_: True)
    request = make_request("a", [], [1, 2, 3], WRITTEN)

    with seeded(bug(Guide, "follow")(gives_up)):
        assert chains.draft(request, 3) == []
    drafted = chains.draft(request, 3)
    assert len(drafted) == 3
    assert drafted == Chains(tiny_model(), 128, lambda *_: True).draft(request, 3)


def test_a_grammar_goes_on_after_a_draft_that_it_does_not_take() -> None:
    guide = make_request("a", [], [1], WRITTEN).guide
    assert guide is not None
    guide.follow(list(b"abc"))

    with pytest.raises(InvalidGrammar):
        guide.take(ord("z"))
    guide.follow(list(b"abcd"))

    assert guide.left == WRITTEN.max_tokens - 4
