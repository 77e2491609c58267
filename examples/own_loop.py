"""Caches for a loop of your own around mlx-lm's models: forks, mixed batches, speculation.

    python examples/own_loop.py [--bits 4]

For models whose layers keep all tokens. Everything that a page of agents needs is between two
forwards, and costs no forward and no copy: whose the next tokens are, who shares whose beginning,
what is taken back.
"""

import argparse
from typing import Any

from kvactors.core import blas

blas.preload()  # before MLX, whose CPU build on Linux is slow without it

import mlx.core as mx  # noqa: E402
from mlx_lm import load  # noqa: E402

from kvactors.core.model.options import DEFAULT_MODEL, DRAFT_MODEL  # noqa: E402
from kvactors.core.sessions import (  # noqa: E402
    CacheConfig,
    Session,
    make_decode_session,
    make_seq_session,
    make_tree_session,
    model_facts,
    read_metadata,
    write_metadata,
)

END = 2  # the default model's
Texts = dict[int, list[int]]


def plain_decode(session: Session[Any], prompt: list[int]) -> list[int]:
    """One sequence, which goes on behind what it holds: no step needs a mask."""
    held = session.cache.length
    answer = [best(session.step(prompt, range(held, held + len(prompt))))]
    while answer[-1] != END and session.cache.can_extend():
        answer.append(best(session.step(answer[-1:], [session.cache.length])))
    return answer


def together(session: Session[Any], texts: Texts) -> dict[int, int]:
    """One forward of new tokens of some sequences, few or many of each; what comes next in each."""
    first = {sequence: session.cache.next_position(sequence) for sequence in texts}
    flat = [(s, first[s] + n, token) for s, text in texts.items() for n, token in enumerate(text)]
    session.cache.begin_step([sequence for sequence, _, _ in flat])
    logits = session.step([token for *_, token in flat], [position for _, position, _ in flat])
    last = {sequence: index for index, (sequence, _, _) in enumerate(flat)}
    return {sequence: best(logits[index : index + 1]) for sequence, index in last.items()}


def streams(session: Session[Any], texts: Texts) -> Texts:
    """Sequences side by side, a token of each in a forward, until all have ended."""
    answers: Texts = {sequence: [] for sequence in texts}
    while texts:
        following = together(session, texts)
        for sequence, token in following.items():
            answers[sequence].append(token)
        texts = {sequence: [token] for sequence, token in following.items() if token != END}
    return answers


def fork(session: Session[Any], trunk: list[int], questions: Texts) -> Texts:
    """Branches 1, 2, ... of one trunk, which is computed once and held once."""
    together(session, {0: trunk})
    for branch in questions:
        session.cache.seq_cp(0, branch)
    answers = streams(session, questions)
    session.cache.seq_keep(min(answers, key=lambda branch: len(answers[branch])))
    return answers


def admit(session: Session[Any], running: Texts, newcomer: list[int], steps: int) -> Texts:
    """Somebody joins while others decode: his prompt and their tokens are one forward."""
    answers: Texts = {sequence: [] for sequence in running}
    texts = running
    while texts:
        steps -= 1
        if steps == 0 and session.cache.can_extend(len(newcomer)):
            texts, answers[3] = {**texts, 3: newcomer}, []
        following = together(session, texts)
        for sequence, token in following.items():
            answers[sequence].append(token)
        texts = {sequence: [token] for sequence, token in following.items() if token != END}
    return answers


def take_back(session: Session[Any], prompt: list[int], dropped: int) -> list[Texts]:
    """An answer is given twice; the second time of a text that has lost its beginning."""
    first = streams(session, {2: prompt})
    session.cache.seq_rm(2, len(prompt) - 1)  # back to before the last token
    again = streams(session, {2: prompt[-1:]})
    session.cache.seq_rm(2, 0, dropped)  # a window: its oldest go
    session.cache.seq_rm(2, len(prompt) - 1)
    later = streams(session, {2: prompt[-1:]})
    session.cache.seq_rm(2)  # all of it
    return [first, again, later]


def draw_tree(draft: Session[Any], root: int, widths: tuple[int, ...]) -> tuple[list[int], ...]:
    """Breadth first, a forward of the draft for each level: tokens, and whose child each is."""
    tokens, parents, level = [root], [-1], [0]
    for width in (*widths, 0):
        draft.cache.propose([parents[node] for node in level])
        logits = draft.step([tokens[node] for node in level], draft.cache.positions)
        likely: Any = mx.argsort(-logits, axis=-1)[:, :width].tolist()
        children = [(n, token) for n, some in zip(level, likely, strict=True) for token in some]
        level = list(range(len(tokens), len(tokens) + len(children)))
        parents += [node for node, _ in children]
        tokens += [token for _, token in children]
    return tokens, parents


def verify(tokens: list[int], parents: list[int], chosen: list[int]) -> tuple[list[int], int]:
    """From the root down along what the target chooses, and the choice behind, which is free."""
    chain = [0]
    while True:
        wanted = chosen[chain[-1]]
        children = [n for n, parent in enumerate(parents) if parent == chain[-1]]
        found = [n for n in children if tokens[n] == wanted]
        if not found:
            return chain, wanted
        chain += found[:1]


def speculate(target: Session[Any], draft: Session[Any], prompt: list[int]) -> tuple[Any, ...]:
    """The target's own greedy answer in fewer of its forwards: one for each tree of the draft."""
    for session in (target, draft):
        session.step(prompt[:-1], range(len(prompt) - 1))
    answer, forwards = prompt[-1:], 0
    while END not in answer[1:]:
        tokens, parents = draw_tree(draft, answer[-1], (2, 2, 1))
        target.cache.propose(parents)
        logits = target.step(tokens, target.cache.positions)
        chosen: Any = mx.argmax(logits, axis=-1).tolist()
        chain, bonus = verify(tokens, parents, chosen)
        for session in (target, draft):
            session.cache.commit(chain)
        answer, forwards = [*answer, *(tokens[n] for n in chain[1:]), bonus], forwards + 1
    return answer[1 : answer.index(END, 1) + 1], forwards


def best(logits: mx.array) -> int:
    """The likeliest token behind the last one of [tokens, vocab]."""
    token: Any = mx.argmax(logits[-1]).item()
    return int(token)


def main() -> None:
    """All of it, with the default model, and the model that drafts for it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bits", type=int, default=4, help="of keys and values")
    bits = parser.parse_args().bits
    model, tokenizer = load(str(DEFAULT_MODEL))[:2]
    small = load(str(DRAFT_MODEL))[0]
    for each in (model, small):
        each.set_dtype(mx.float32)
    metadata = write_metadata({}, model_facts(model))  # in the model's file
    config = CacheConfig(read_metadata(metadata), capacity=2000, bits=bits)
    drafting = CacheConfig(model_facts(small), capacity=2000, bits=None)

    def turn(text: str) -> list[int]:
        return list(tokenizer.encode(f"<|user|>{text}<|end|><|assistant|>"))

    def show(title: str, *answers: list[int]) -> None:
        texts = [tokenizer.decode([token for token in one if token != END]) for one in answers]
        print(f"{title:<10}", " | ".join(texts))

    facts = ("My cat is called Biscuit.", "The meeting is on Friday.", "Marta lives in Lisbon.")
    questions = ("What is my cat called?", "When is the meeting?", "Where does Marta live?")
    texts = {n: turn(fact) for n, fact in enumerate(facts, 1)}
    asked = {n: turn(question) for n, question in enumerate(questions, 1)}
    with make_decode_session(model, config) as one:
        trunk: list[int] = []
        for text in texts.values():
            # What was answered is known, but for its last token.
            trunk += text + plain_decode(one, trunk[-1:] + text)
        show("decode", plain_decode(one, trunk[-1:] + asked[1]))
    with make_seq_session(model, config) as many:
        told = streams(many, texts)
        show("streams", *streams(many, {n: told[n][-1:] + asked[n] for n in texts}).values())
        many.cache.clear()
        show("fork", *fork(many, trunk, asked).values())
        print(
            f"{'':<10} {many.row.nbytes:,} bytes; {many.cache.seq_len(0)} tokens of the trunk left"
        )
        many.cache.clear()
        running = {n: trunk + asked[n] for n in (1, 2)}
        show("admit", *admit(many, running, trunk + asked[3], 2).values())
        many.cache.clear()
        show("take back", *(text[2] for text in take_back(many, trunk + asked[2], len(texts[1]))))
    with make_tree_session(model, config) as target, make_tree_session(small, drafting) as draft:
        answer, forwards = speculate(target, draft, trunk + asked[3])
        show("speculate", answer)
        print(f"{'':<10} {len(answer)} tokens in {forwards} forwards of the target")
    with make_decode_session(model, config) as one:
        print(f"{'':<10} the same as one by one: {plain_decode(one, trunk + asked[3]) == answer}")


if __name__ == "__main__":
    main()
