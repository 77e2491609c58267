"""What the default model recalls of a restored memory, and what it refuses to invent.

    python -m kvactors.bench.quality.recall [--dtype float32] [--worlds 40] [--quick]

Held-out worlds (seeds that training never used) are told in one process, turn by turn, through
the engine with 4-bit KV. That process ends. Another one restores the agents and asks them one
question after another, greedily: what was told, and what was not. Recalled: the value stands
in the answer. Refused: the answer is "I do not know."
"""

import argparse
import json
import multiprocessing
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np

from kvactors.actors import AgentSystem, Reply, Sampling
from kvactors.bench.report import print_json, print_table
from kvactors.core.model.worlds.world import UNKNOWN, Names, World, make_world

__all__ = ["Cell", "main", "measure_recall", "recalls"]

# Training draws from seeds of two numbers, these have three: no world is shared.
SEED = 987_654_321
# Facts (from, to) and tokens of the told part.
SIZES = ((4, 12, 256), (4, 10, 1000), (11, 25, 1000), (26, 40, 1000))
TOLD_QUESTIONS = 8
UNKNOWN_QUESTIONS = 4
ANSWER = Sampling(max_tokens=48)
RESTORED = ("warm", "hot")


@dataclass(slots=True)
class Cell:
    """One row of the table: worlds of one size and one kind of names."""

    names: str
    facts: str
    tokens: int
    asked: int = 0
    recalled: int = 0
    exact: int = 0
    never_told: int = 0
    refused: int = 0

    @property
    def recall(self) -> float:
        """Share of values recalled."""
        return self.recalled / max(1, self.asked)

    @property
    def verbatim(self) -> float:
        """Share of answers that are the expected sentence to the letter."""
        return self.exact / max(1, self.asked)

    @property
    def refusal(self) -> float:
        """Share of never-told questions refused."""
        return self.refused / max(1, self.never_told)


@dataclass(frozen=True, slots=True)
class Question:
    """Asked after the restart. `value` None: it was never told."""

    text: str
    answer: str
    value: str | None


@dataclass(slots=True)
class Exam:
    """An agent, its cell, and its questions."""

    agent_id: str
    cell: int
    system: str | None
    turns: tuple[str, ...]
    questions: list[Question] = field(default_factory=list)


def main(arguments: Sequence[str] | None = None) -> None:
    """Tell in one process, ask in another, print a table and a JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="float32", choices=("float32", "float16", "bfloat16"))
    parser.add_argument("--worlds", type=int, default=40, help="worlds of each kind and size")
    parser.add_argument("--model", default="default")
    parser.add_argument("--show", type=int, default=0, help="print so many wrong answers")
    parser.add_argument("--quick", action="store_true", help="one small world of each")
    options = parser.parse_args(arguments)
    worlds = 1 if options.quick else options.worlds
    sizes = 1 if options.quick else len(SIZES)

    cells, wrong = measure_recall(options.model, {"dtype": options.dtype}, worlds, sizes)
    for line in wrong[: options.show]:
        print(line)
    _print(cells, options.model, options.dtype, worlds)


def measure_recall(
    model: str, options: dict[str, Any], worlds: int, sizes: int = len(SIZES)
) -> tuple[list[Cell], list[str]]:
    """What `model` recalls of each of `worlds`, of these `sizes`, after a restart, and the wrong
    answers. `options` are AgentSystem's."""
    with tempfile.TemporaryDirectory(prefix="kvactors-recall-") as folder:
        for phase in (_tell, _ask):
            _in_a_process(phase, folder, model, options, worlds, sizes)
        found = json.loads((Path(folder) / "found.json").read_text())
    return [Cell(**cell) for cell in found["cells"]], found["wrong"]


def _in_a_process(phase: Callable[..., None], *arguments: Any) -> None:
    process = multiprocessing.get_context("spawn").Process(target=phase, args=arguments)
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(process.exitcode)


def _cells(sizes: int) -> list[Cell]:
    return [
        Cell(names, f"{low}-{high}", tokens)
        for names in get_args(Names)
        for low, high, tokens in SIZES[:sizes]
    ]


def _exams(worlds: int, sizes: int, count_tokens: Callable[[str], int]) -> list[Exam]:
    """The same in both processes: seeds decide."""
    exams = []
    for index, cell in enumerate(_cells(sizes)):
        low, high = map(int, cell.facts.split("-"))
        for number in range(worlds):
            rng = np.random.default_rng((SEED, index, number))
            world = make_world(
                rng,
                facts=int(rng.integers(low, high + 1)),
                names=cell.names,  # type: ignore[arg-type]
                tokens=cell.tokens,
                count_tokens=count_tokens,
            )
            name = f"{cell.names}, {cell.facts} facts, {cell.tokens} tokens, world {number}"
            exams.append(Exam(name, index, world.system, world.turns, _questions(rng, world)))
    return exams


def _questions(rng: np.random.Generator, world: World) -> list[Question]:
    facts = [world.facts[i] for i in rng.permutation(len(world.facts))[:TOLD_QUESTIONS]]
    asked = [Question(fact.question, fact.answer, fact.value) for fact in facts]
    asked += [Question(text, UNKNOWN, None) for text in world.unknown[:UNKNOWN_QUESTIONS]]
    return [asked[i] for i in rng.permutation(len(asked))]


def _open(folder: str, model: str, options: dict[str, Any]) -> AgentSystem:
    return AgentSystem(model, store=Path(folder) / "store", **options)


def _count(system: AgentSystem) -> Callable[[str], int]:
    return lambda text: len(system.chat.encode(text))


def _tell(folder: str, model: str, options: dict[str, Any], worlds: int, sizes: int) -> None:
    with _open(folder, model, options) as system:
        for exam in _exams(worlds, sizes, _count(system)):
            agent = system.spawn(exam.agent_id, exam.system)
            for turn in exam.turns:
                agent.tell(turn, sampling=ANSWER)


def _ask(folder: str, model: str, options: dict[str, Any], worlds: int, sizes: int) -> None:
    cells, wrong = _cells(sizes), []
    with _open(folder, model, options) as system:
        exams = _exams(worlds, sizes, _count(system))
        asked = [(exam, q, _send(system, exam, q)) for exam in exams for q in exam.questions]
        for exam, question, future in asked:
            reply = future.get()
            assert reply.cache in RESTORED, f"{exam.agent_id} was {reply.cache}"
            if not _judge(cells[exam.cell], question, reply):
                wrong.append(f"{exam.agent_id}: {question.text} {reply.text!r} {question.answer!r}")
    found = {"cells": [asdict(cell) for cell in cells], "wrong": wrong}
    (Path(folder) / "found.json").write_text(json.dumps(found))


def _send(system: AgentSystem, exam: Exam, question: Question) -> Any:
    return system.spawn(exam.agent_id).ask(question.text, sampling=ANSWER)


def recalls(text: str, value: str) -> bool:
    """Whether it has the value as a whole word: 11 is not recalled by who says 1148."""
    return re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text) is not None


def _judge(cell: Cell, question: Question, reply: Reply) -> bool:
    """Count one answer; whether it was right."""
    text = reply.text.strip()
    if question.value is None:
        cell.never_told += 1
        cell.refused += text == UNKNOWN
        return text == UNKNOWN
    recalled = recalls(text, question.value)
    cell.asked += 1
    cell.recalled += recalled
    cell.exact += text == question.answer
    return recalled


def _print(cells: Sequence[Cell], model: str, dtype: str, worlds: int) -> None:
    spans = [tuple(map(int, cell.facts.split("-"))) for cell in cells]
    facts = f"{min(low for low, _ in spans)}-{max(high for _, high in spans)}"
    total = Cell("all", facts, max(cell.tokens for cell in cells))
    for name in ("asked", "recalled", "exact", "never_told", "refused"):
        setattr(total, name, sum(getattr(cell, name) for cell in cells))
    rows = [
        (c.names, c.facts, c.tokens, c.asked, c.recall, c.verbatim, c.never_told, c.refusal)
        for c in [*cells, total]
    ]
    print_table(
        f"Recall after a restart, {dtype}, 4-bit KV, {worlds} worlds in each row.",
        ("names", "facts", "tokens", "asked", "recall", "exact", "never told", "refused"),
        rows,
    )
    print_json(
        "recall",
        model=model,
        dtype=dtype,
        kv_bits=4,
        worlds=worlds,
        recall=total.recall,
        refusal=total.refusal,
        rows=[asdict(cell) | {"recall": cell.recall, "refusal": cell.refusal} for cell in cells],
    )


if __name__ == "__main__":
    main()
