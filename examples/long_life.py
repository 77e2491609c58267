"""One agent's long life: 40 turns over four processes, with memory for only some of its company.

    python examples/long_life.py [--budget 4MB] [--store DIR]

Each process restores alice, tells her things, and talks to two others in between. As they grow,
the memory budget no longer holds all three: who was idle longest is evicted, and comes back from
disk at its next turn. In the last turn of all alice is asked about the first.
"""

import argparse
import multiprocessing
import tempfile
from collections import Counter

from kvactors.actors import AgentSystem

PROCESSES, TURNS = 4, 10
OTHERS = ("ben", "clara")
PEOPLE = (
    ("Ada", "Lisbon", "tea"),
    ("Ben", "Oslo", "bread"),
    ("Clara", "Rome", "cheese"),
    ("David", "Paris", "rice"),
    ("Grace", "Madrid", "soup"),
    ("Henry", "London", "fish"),
    ("Irene", "Vienna", "honey"),
    ("Jack", "Berlin", "apples"),
    ("Kate", "Athens", "pasta"),
    ("Leo", "Dublin", "coffee"),
    ("Maria", "Prague", "cake"),
    ("Noah", "Cairo", "milk"),
    ("Olga", "Tokyo", "salad"),
)
FACTS = (
    "My cat is called Biscuit.",
    *(f"{name} lives in {city}." for name, city, _ in PEOPLE),
    *(f"{name} likes {food}." for name, _, food in PEOPLE),
    *(f"{name} is {21 + 3 * n} years old." for n, (name, _, _) in enumerate(PEOPLE)),
)
QUESTION = "What is my cat called?"
TITLES = ("process", "turns", "hot", "warm", "cold", "evictions", "tokens", "prefilled", "answer")
COLUMNS = "{:>7}  {:>5}  {:>4}  {:>4}  {:>4}  {:>9}  {:>6}  {:>9}  {}"


def live(number: int, store: str, budget: str, said: list[str]) -> None:
    """One process: alice's next turns, and the company that takes her place in memory."""
    with AgentSystem(store=store, memory_budget=budget) as system:
        alice = system.spawn("alice", system_prompt="You answer from memory.")
        states: Counter[str] = Counter()
        prefilled = 0
        for turn, text in enumerate(said):
            reply = alice.ask(text).get(timeout=60)
            states[reply.cache] += 1
            prefilled += reply.usage.prefilled_tokens
            # Only what is on disk may leave memory.
            reply.cached.get(timeout=60)
            for name in OTHERS:
                heard = FACTS[1 + turn % 10]
                system.spawn(name).ask(heard).get(timeout=60).cached.get(timeout=60)
        counts = [states[state] for state in ("hot", "warm", "cold")]
        counts += [system.stats()["evictions"], len(alice.transcript().token_ids), prefilled]
        print(COLUMNS.format(number, len(said), *counts, reply.text))


def main() -> None:
    """Four lives, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", default="4MB", help="memory for all agents [4MB]")
    parser.add_argument("--store", help="a directory to keep; default: a temporary one")
    options = parser.parse_args()
    said = [*FACTS[: PROCESSES * TURNS - 1], QUESTION]

    print(COLUMNS.format(*TITLES))
    with tempfile.TemporaryDirectory() as folder:
        for number in range(PROCESSES):
            process = multiprocessing.get_context("spawn").Process(
                target=live,
                args=(
                    number + 1,
                    options.store or folder,
                    options.budget,
                    said[number * TURNS : (number + 1) * TURNS],
                ),
            )
            process.start()
            process.join()
            if process.exitcode:
                raise SystemExit(process.exitcode)
    print(f"\nThe first turn was: {said[0]}\nThe last question was: {QUESTION}")


if __name__ == "__main__":
    main()
