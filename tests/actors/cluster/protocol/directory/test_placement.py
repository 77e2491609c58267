"""Where agents go: the least loaded, groups together within a bound, and level in a few moves."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kvactors.actors.cluster.protocol.directory.placement import (
    BOUND,
    FORKED,
    UNEVEN,
    Load,
    beside,
    choose,
    fullest,
    levelling,
    other_load,
)

GB = 2**30
loads = st.builds(Load, bytes=st.integers(0, 8 * GB), agents=st.integers(0, 50))


def test_the_least_loaded_node_is_chosen() -> None:
    assert choose({"a": Load(2 * GB), "b": Load(GB), "c": Load(3 * GB)}, {}) == "b"


def test_turns_that_wait_weigh_too() -> None:
    assert choose({"a": Load(GB, waiting=100), "b": Load(2 * GB)}, {}) == "b"


def test_a_group_stays_together_where_that_costs_little() -> None:
    near, far = int(BOUND * GB) - 1, 2 * GB

    assert choose({"a": Load(GB), "b": Load(near)}, {"b": 3}) == "b"
    assert choose({"a": Load(GB), "b": Load(far)}, {"b": 3}) == "a"


def test_a_fork_stays_with_its_parent_until_that_node_is_much_fuller_than_others() -> None:
    def full(agents: int) -> dict[str, Load]:
        return {"a": Load(agents * GB, agents=agents), "b": Load()}

    assert beside({"a": Load(GB, agents=1), "b": Load(GB, agents=1)}, "a")
    assert beside(full(int(FORKED)), "a")
    assert not beside(full(int(FORKED) + 1), "a")
    assert beside(full(9), "b")
    assert not beside(full(1), "drained")


def test_those_that_have_least_to_lose_are_levelled_away() -> None:
    nodes = {"a": Load(bytes=9 * GB, agents=9), "new": Load()}
    names = [f"{group}{i}" for group, size in (("x", 5), ("y", 1), ("z", 3)) for i in range(size)]

    def lost(agent: str, source: str, target: str) -> int:
        assert (source, target) == ("a", "new")
        return -sum(name[0] == agent[0] for name in names)

    moves = levelling(nodes, {"a": names}, 3, lost)

    assert moves == [(agent, "new") for agent in ("y0", "z0", "z1")]


@given(st.dictionaries(st.sampled_from("abcd"), loads, min_size=1), st.integers(0, 8))
def test_some_agents_of_the_fullest_nodes_are_as_good_as_all(
    nodes: dict[str, Load], most: int
) -> None:
    agents = {n: [f"{n}{i}" for i in range(load.agents)] for n, load in nodes.items()}
    some = {node: agents[node][:most] for node in fullest(nodes, most)}

    moves, among_all = levelling(nodes, some, most), levelling(nodes, agents, most)

    assert [(agent[0], target) for agent, target in moves] == [
        (agent[0], target) for agent, target in among_all
    ]


def test_without_nodes_there_is_no_place() -> None:
    assert choose({}, {}) is None


def test_an_empty_node_is_filled_from_the_fullest_until_all_are_even() -> None:
    agents = {"a": [f"a{i}" for i in range(30)], "b": [f"b{i}" for i in range(30)], "new": []}
    nodes = {n: Load(bytes=len(names) * GB // 10) for n, names in agents.items()}

    moves = levelling(nodes, agents, 100)

    held = Counter({name: len(names) for name, names in agents.items()})
    for agent, target in moves:
        held[agent[0]] -= 1
        held[target] += 1
    assert {target for _, target in moves} == {"new"}
    assert max(held.values()) <= 20 * (1 + UNEVEN)
    assert min(held.values()) >= 20 * (1 - UNEVEN)


def test_turns_that_wait_move_nobody() -> None:
    nodes = {"a": Load(GB, waiting=100, agents=10), "b": Load(GB, agents=10)}
    agents = {n: [f"{n}{i}" for i in range(10)] for n in nodes}

    assert levelling(nodes, agents, 100) == []


def test_agents_are_looked_at_again_when_nodes_hold_something_else() -> None:
    before = {"a": Load(10 * GB), "b": Load(10 * GB)}

    assert not other_load(before, {"a": Load(10 * GB, waiting=9), "b": Load(11 * GB - 1)})
    assert other_load(before, {"a": Load(10 * GB), "b": Load(12 * GB)})
    assert other_load({}, before)
    assert not other_load(before, {})


@given(st.dictionaries(st.sampled_from("abcd"), loads, min_size=1), st.integers(0, 8))
def test_a_levelling_never_makes_it_worse_and_ends(nodes: dict[str, Load], most: int) -> None:
    agents = {n: [f"{n}{i}" for i in range(load.agents)] for n, load in nodes.items()}

    moves = levelling(nodes, agents, most)

    assert len(moves) <= most
    assert len({agent for agent, _ in moves}) == len(moves)
    for agent, target in moves:
        assert nodes[agent[0]].held > nodes[target].held
