"""Facts spread through a graph of agents; at the end each is asked what it knows.

    python examples/gossip.py [--agents 8] [--hops 2] [--seed 1] [--plot gossip.png]

Every agent starts with one fact, tells its neighbours, and passes on what it hears for some
hops. When no message is left, each agent is asked for every fact, out of its own cache, and
forgets that it was asked. A row of the matrix is an agent, a column a fact: `#` it was told and
knows it, `.` it was not told and says so, `-` it was told and does not know it, `!` it claims
to know what it was not told.
"""

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvactors.actors import Agent, AgentBehaviour, AgentSystem, Sampling

PEOPLE = ("Marta", "Robert", "Emma", "Frank", "Sofia", "Peter", "Alice", "Marco", "Laura", "David")
CITIES = (
    "Lisbon",
    "Vienna",
    "Oslo",
    "Madrid",
    "Dublin",
    "Prague",
    "Berlin",
    "Athens",
    "Rome",
    "Paris",
)
SHORT = Sampling(max_tokens=20)
UNKNOWN = "I do not know."
# Each sign of the matrix: its colour in the picture, and what it says.
SIGNS = {
    "#": ("#2f6db3", "told, and knows it"),
    "-": ("#e0a030", "told, and does not know it"),
    "!": ("#c03030", "not told, and claims to know"),
    ".": ("#dddddd", "not told, and says so"),
}


@dataclass(frozen=True)
class Rumour:
    """A fact, and how many hops it still goes."""

    fact: int
    hops: int


def said(fact: int) -> str:
    """A fact as it is told, and as it is answered."""
    return f"{PEOPLE[fact]} lives in {CITIES[fact]}."


class Gossip(AgentBehaviour):
    """Remembers what it hears the first time, and passes it on."""

    def __init__(self, neighbours: Sequence[str]) -> None:
        self.neighbours = neighbours
        self.heard: set[int] = set()

    async def on_message(self, message: Rumour, sender: Agent | None) -> None:
        """Hear a rumour."""
        if message.fact in self.heard:
            return
        self.heard.add(message.fact)
        await self.think(said(message.fact), sampling=SHORT)
        if message.hops:
            await self.broadcast(Rumour(message.fact, message.hops - 1), to=self.neighbours)


def graph(count: int, seed: int) -> list[list[str]]:
    """A ring with some chords: the neighbours of each agent."""
    rng = random.Random(seed)
    edges = {(n, (n + 1) % count) for n in range(count)}
    edges |= {(rng.randrange(count), rng.randrange(count)) for _ in range(count // 4)}
    return [
        sorted({names(b if a == n else a) for a, b in edges if n in (a, b) and a != b})
        for n in range(count)
    ]


def names(number: int) -> str:
    """The id of an agent."""
    return f"agent {number}"


def ask(agent: Agent, fact: int) -> str:
    """What an agent answers about a fact; it forgets that it was asked."""
    reply = agent.ask(f"Where does {PEOPLE[fact]} live?", sampling=SHORT).get(timeout=600)
    agent.rewind().get(timeout=600)
    return str(reply.answer)


def cell(told: bool, fact: int, answer: str) -> str:
    """One sign of the matrix."""
    if told:
        return "#" if answer == said(fact) else "-"
    return "." if answer == UNKNOWN else "!"


def draw(matrix: list[str], path: str) -> None:
    """The matrix as a picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    count = len(matrix)
    places = range(count)
    figure, axes = pyplot.subplots(figsize=(3.2 + 0.5 * count, 1.6 + 0.45 * count))
    axes.imshow(
        [[list(SIGNS).index(sign) for sign in row] for row in matrix],
        cmap=ListedColormap([colour for colour, _ in SIGNS.values()]),
        vmin=0,
        vmax=len(SIGNS) - 1,
    )
    axes.set_xticks(places, [said(n) for n in places], rotation=40, ha="right")
    axes.set_yticks(places, [names(n) for n in places])
    axes.set_xticks([n - 0.5 for n in places], minor=True)
    axes.set_yticks([n - 0.5 for n in places], minor=True)
    axes.grid(which="minor", color="white", linewidth=2)
    axes.tick_params(which="both", length=0)
    axes.set_title("Who knows what, once no message is left", loc="left")
    axes.legend(
        handles=[Patch(color=colour, label=text) for colour, text in SIGNS.values()],
        loc="upper left",
        bbox_to_anchor=(1.02, 1),
        frameon=False,
    )
    figure.savefig(path, dpi=110, bbox_inches="tight")


def main() -> None:
    """Spread the facts, ask everybody, print who knows what."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=8, choices=range(3, len(PEOPLE) + 1))
    parser.add_argument("--hops", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", help="draw the matrix into this file (needs matplotlib)")
    options = parser.parse_args()
    count = options.agents
    # Who hears what first would differ from run to run.
    with AgentSystem(store=False, deterministic=True) as system:
        behaviours = [Gossip(neighbours) for neighbours in graph(count, options.seed)]
        agents: list[Any] = [
            system.spawn(names(number), behaviour=behaviour)
            for number, behaviour in enumerate(behaviours)
        ]
        for number, agent in enumerate(agents):
            agent.deliver(Rumour(number, options.hops))
        system.wait_idle()
        print(f"{sum(len(b.heard) for b in behaviours)} facts were told in all\n")
        matrix = [
            "".join(cell(fact in b.heard, fact, ask(agent, fact)) for fact in range(count))
            for agent, b in zip(agents, behaviours, strict=True)
        ]
    for number, row in enumerate(matrix):
        print(f"{names(number):9}", " ".join(row))
    right = sum(row.count("#") + row.count(".") for row in matrix)
    print(f"\n{right} of {count * count} answers are right")
    if options.plot:
        draw(matrix, options.plot)


if __name__ == "__main__":
    main()
