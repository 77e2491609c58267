"""A stress test of your own: your behaviours, your invariant, and what the system proves.

    python examples/stress_custom.py [--agents 12] [--messages 200] [--seed 1]

The run is deterministic: the seed draws the order in which messages are handled, too.

Accounts pay each other at random; some messages fail on purpose and their behaviours restart,
some think about it first, some mailboxes are small. The invariant: money is neither made nor
lost, except what the dead letters hold.
"""

import argparse
import logging
import random
from dataclasses import dataclass
from typing import Any

from kvactors.actors import Agent, AgentBehaviour, AgentSystem, LanePolicy, Sampling, Supervision

START = 100
THOUGHT = Sampling(max_tokens=3)


@dataclass(frozen=True)
class Pay:
    """To an account: send so much to another one."""

    to: str
    amount: int
    thoughtful: bool


@dataclass(frozen=True)
class Money:
    """To an account: this is yours."""

    amount: int


@dataclass(frozen=True)
class Fail:
    """To an account: raise."""


class Account(AgentBehaviour):
    """Holds money. Its balance is kept outside of it, so that a restart does not lose it."""

    def __init__(self, balances: dict[str, int]) -> None:
        self.balances = balances

    async def on_message(self, message: Any, sender: Agent | None) -> None:
        """Pay, receive, or fail."""
        if isinstance(message, Fail):
            raise RuntimeError("on purpose")
        if isinstance(message, Money):
            self.balances[self.agent_id] += message.amount
            return
        if message.thoughtful:
            await self.think(f"Pay {message.amount} to {message.to}?", sampling=THOUGHT)
        amount = min(message.amount, self.balances[self.agent_id])
        self.balances[self.agent_id] -= amount
        self.send(message.to, Money(amount))


def order(rng: random.Random, names: list[str]) -> Any:
    """The next thing that an account is told."""
    if rng.random() < 0.1:
        return Fail()
    return Pay(rng.choice(names), rng.randrange(1, 50), rng.random() < 0.3)


def main() -> None:
    """Pay, wait until nothing is left, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=12)
    parser.add_argument("--messages", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    logging.getLogger("kvactors").setLevel(logging.CRITICAL)
    rng = random.Random(options.seed)
    names = [f"account {number}" for number in range(options.agents)]
    balances = dict.fromkeys(names, START)
    restart = Supervision("restart", backoff=0.001, longest_backoff=0.01, most=10_000)
    with AgentSystem(
        store=False, memory_budget="64MB", deterministic=True, seed=options.seed
    ) as system:
        for number, name in enumerate(names):
            lane = LanePolicy(8, "drop_oldest") if number % 4 == 0 else LanePolicy()
            behaviour = Account(balances)
            system.spawn(name, behaviour=behaviour, supervision=restart, prompt_lane=lane)
        for _ in range(options.messages):
            agent = system.find(rng.choice(names))
            assert agent is not None
            agent.deliver(order(rng, names))
        system.wait_idle()
        system.check()
        letters = [letter.message for letter in system.dead_letters()]
        turns = sum(len(agent.transcript().turns) for agent in system.agents()) // 2
    lost = sum(message.amount for message in letters if isinstance(message, Money))
    print(f"{options.messages} orders, {turns} turns, {len(letters)} dead letters")
    print(f"{sum(balances.values())} in the accounts, {lost} in dead letters")
    assert sum(balances.values()) + lost == START * options.agents
    print("nothing was made, nothing was lost")


if __name__ == "__main__":
    main()
