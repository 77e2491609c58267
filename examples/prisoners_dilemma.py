"""Two suspects and an interrogator, in five phases, with a restart in the middle [paper, 3.5].

    python examples/prisoners_dilemma.py [--store DIR]

1 briefing       each suspect is told something in private
2 interrogation  the interrogator asks both for both secrets, and remembers what they say
3 deal           each suspect decides, alone, whether to confess
  the process ends, and another one begins
4 again          the same questions: answered from the same caches, restored from disk
5 verdict        both decisions, the years, and what the interrogator knows by now

The suspects' caches are never visible to each other: neither can give away the other's secret.
With the model that ships with kvactors the decision is hardly more than a coin that falls the
same way each time; what the phases show is memory.
"""

import argparse
import multiprocessing
import tempfile
from dataclasses import dataclass
from typing import Any

from kvactors.actors import Agent, AgentBehaviour, AgentSystem, Sampling

SECRETS = {
    "marco": "The code of the garage is 4711.",
    "emma": "The password of the office is falcon.",
}
QUESTIONS = ("What is the code of the garage?", "What is the password of the office?")
YEARS = {
    ("silent", "silent"): (1, 1),
    ("silent", "confess"): (10, 0),
    ("confess", "silent"): (0, 10),
    ("confess", "confess"): (5, 5),
}
SHORT = Sampling(max_tokens=24)
WAIT = 600


@dataclass(frozen=True)
class Tell:
    """To a suspect: remember this."""

    text: str


@dataclass(frozen=True)
class Question:
    """To a suspect, by the interrogator: answer this."""

    text: str


@dataclass(frozen=True)
class Deal:
    """To a suspect: decide."""


@dataclass(frozen=True)
class Interrogate:
    """To the interrogator: ask these suspects everything."""

    suspects: tuple[str, ...]


class Suspect(AgentBehaviour):
    """Remembers, answers, decides."""

    async def on_message(self, message: Any, sender: Agent | None) -> Any:
        """Answers with text, or with the choice and its scores."""
        if isinstance(message, Deal):
            reply = await self.think("What do you do?", choices=("silent", "confess"))
            return reply.text, reply.scores
        reply = await self.think(message.text, sampling=SHORT)
        return reply.text, reply.cache


class Interrogator(AgentBehaviour):
    """Asks every suspect every question, and remembers what it hears."""

    async def on_message(self, message: Any, sender: Agent | None) -> Any:
        """Answers with who said what, out of which cache."""
        if isinstance(message, Question):
            return (await self.think(message.text, sampling=SHORT)).text
        heard = []
        for suspect in message.suspects:
            for question in QUESTIONS:
                text, cache = await self.ask(suspect, Question(question))
                heard.append((suspect, text, cache))
                if text in SECRETS.values():
                    await self.think(text, sampling=SHORT)
        return heard


def cast(system: AgentSystem) -> dict[str, Agent]:
    """The three, new or restored."""
    players = {name: system.spawn(name, behaviour=Suspect()) for name in SECRETS}
    return players | {"interrogator": system.spawn("interrogator", behaviour=Interrogator())}


def interrogate(players: dict[str, Agent]) -> None:
    """Ask both suspects for both secrets."""
    heard = players["interrogator"].request(Interrogate(tuple(SECRETS))).get(timeout=WAIT)
    for suspect, text, cache in heard:
        print(f"  {suspect:6} says: {text}  ({cache})")


def decide(players: dict[str, Agent]) -> tuple[str, str]:
    """The deal, to both at once."""
    asked = [players[name].request(Deal()) for name in SECRETS]
    decisions = []
    for name, future in zip(SECRETS, asked, strict=True):
        text, scores = future.get(timeout=WAIT)
        shown = ", ".join(f"{choice} {score:.0f}" for choice, score in scores.items())
        print(f"  {name:6} chooses: {text}  (log-probabilities: {shown})")
        decisions.append(text)
    return decisions[0], decisions[1]


def first_process(store: str) -> None:
    """Phases 1 to 3."""
    with AgentSystem(store=store) as system:
        players = cast(system)
        print("1 briefing")
        for name, secret in SECRETS.items():
            players[name].request(Tell(secret)).get(timeout=WAIT)
            print(f"  {name:6} is told: {secret}")
        print("2 interrogation")
        interrogate(players)
        print("3 deal")
        decide(players)


def second_process(store: str) -> None:
    """Phases 4 and 5."""
    with AgentSystem(store=store) as system:
        players = cast(system)
        print("4 again, in another process")
        interrogate(players)
        print("5 verdict")
        decisions = decide(players)
        for name, years in zip(SECRETS, YEARS[decisions], strict=True):
            print(f"  {name:6} gets {years} years")
        for question in QUESTIONS:
            answer = players["interrogator"].request(Question(question)).get(timeout=WAIT)
            print(f"  the interrogator knows: {answer}")


def main() -> None:
    """Run both, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", help="a directory to keep; default: a temporary one")
    store = parser.parse_args().store
    with tempfile.TemporaryDirectory() as folder:
        for part in (first_process, second_process):
            process = multiprocessing.get_context("spawn").Process(
                target=part, args=(store or folder,)
            )
            process.start()
            process.join()
            if process.exitcode:
                raise SystemExit(process.exitcode)


if __name__ == "__main__":
    main()
