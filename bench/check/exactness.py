"""The tiers of exactness [design, Exactness]: what the conversations said, compared.

On a CPU the same tokens are promised in any company, without a tolerance. On a GPU the order of
a sum may depend on who shares the batch. There a token may differ where the two likeliest are
closer than twice what such sums move the logits by, which is measured; the conversation is not
compared any further.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import mlx.core as mx

from kvactors.actors import Reply
from kvactors.bench.check.conversations import AGENTS, PROMPTS, TURNS, Heard
from kvactors.bench.check.finding import Answer, Verdict
from kvactors.bench.check.kinds import Kind
from kvactors.core.arena.arena import Arena
from kvactors.core.attention.policy import AttentionMode
from kvactors.core.engine.runner import new_arena
from kvactors.core.model.load import LoadedModel

__all__ = ["Judge", "alone", "batched", "forked", "restarted"]

Turns = list[tuple[list[int], list[int]]]
# As the engine prefills.
CHUNK = 256
# Ways that add in other orders: smaller chunks, and rows beside.
OTHER_CHUNKS = (64, 100)
COMPANY = (1, 3)
MODES: tuple[AttentionMode, ...] = ("packed", "dequantize")


@dataclass(frozen=True, slots=True)
class Difference:
    """Where an agent first said something else than expected."""

    agent: int
    turn: int
    at: int
    said: int
    expected: int

    def __str__(self) -> str:
        return (
            f"agent {self.agent}, turn {self.turn + 1}, token {self.at + 1}: {self.said}, "
            f"not {self.expected}"
        )


@dataclass(frozen=True, slots=True)
class Judge:
    """What a difference is, for the model of `kind`: a violation on a device that is `exact`."""

    kind: Kind
    exact: bool

    def __call__(
        self, found: Sequence[Difference], compared: int, heard: Heard, detail: str
    ) -> Answer:
        """The answer for the differences `found` among so many answers `compared` of those
        `heard`; with this `detail` if there is none."""
        numbers: dict[str, float] = {"compared": compared, "different": len(found)}
        if not found:
            return Answer("held", f"{compared} answers, {detail}", numbers)
        if self.exact:
            return Answer("violated", "; ".join(map(str, found)), numbers)
        said, ties = list[str](), 0
        for difference in found:
            margin, noise = _margin_and_noise(self.kind, difference, heard)
            ties += margin <= 2 * noise
            said.append(f"{difference} (margin {margin:.2g}, noise {noise:.2g})")
        numbers["near_ties"] = ties
        verdict: Verdict = "allowed" if ties == len(found) else "violated"
        return Answer(verdict, "; ".join(said), numbers)


def alone(heard: Heard, judge: Judge) -> Answer:
    """What each agent said alone, whose KV was put away after each turn, against what a bare row
    of the model says, where nothing ever is."""
    if len({reply.token_ids for turns in heard.alone for reply in turns}) == 1:
        return Answer("violated", "every agent said the same, whatever it was told")
    loaded = judge.kind.load()
    found = [d for i in range(AGENTS) if (d := _against_replay(loaded, i, _turns(heard, i)))]
    return judge(found, TURNS * AGENTS, heard, "as a bare row that is never put away")


def batched(heard: Heard, judge: Judge) -> Answer:
    """Two turns in a batch whose rows join and leave, against the same alone."""
    if heard.batched == judge.kind.one_by_one:
        rows = "in one batch, not one by one" if heard.batched else "one by one: wrong in a batch"
        return Answer("violated", f"rows ran {rows}")
    found = [d for i in range(AGENTS) if (d := _first(i, heard, heard.together[i][:2]))]
    rows = "in one batch" if heard.batched else "rows one by one"
    return judge(found, 2 * AGENTS, heard, f"{rows}, as alone")


def restarted(heard: Heard, judge: Judge) -> Answer:
    """A third turn in a new system, from the store's KV, against who never stopped."""
    third = [turns[2] for turns in heard.together]
    cold = [f"agent {i} was {reply.cache}" for i, reply in enumerate(third) if not _kept(reply, i)]
    if cold:
        return Answer("violated", "; ".join(cold) + ", not warm with all it knew")
    return _third_turns(heard, third, judge, "from disk, as who never stopped")


def forked(heard: Heard, judge: Judge) -> Answer:
    """A third turn of each agent's child, against who took it alone."""
    cold = [f"child {i}" for i, reply in enumerate(heard.forked) if reply.cache == "cold"]
    if cold:
        return Answer("violated", f"{', '.join(cold)}: cold, so nothing was shared")
    return _third_turns(heard, heard.forked, judge, "as who was not forked")


def _kept(reply: Reply, index: int) -> bool:
    prompt = len(PROMPTS[index][2])
    # All but the last token, which is fed again.
    return reply.cache == "warm" and reply.usage.reused_tokens == _known(reply) - prompt - 1


def _known(reply: Reply) -> int:
    return reply.usage.prompt_tokens


def _third_turns(heard: Heard, third: Sequence[Reply], judge: Judge, detail: str) -> Answer:
    """Of those whose first two turns were as alone: others remember something else."""
    same = [i for i in range(AGENTS) if _first(i, heard, heard.together[i][:2]) is None]
    if not same:
        return Answer("violated", "no agent said in a batch what it says alone")
    replies = {i: [*heard.alone[i][:2], third[i]] for i in same}
    found = [d for i in same if (d := _first(i, heard, replies[i]))]
    return judge(found, len(same), heard, detail)


def _first(agent: int, heard: Heard, replies: Sequence[Reply]) -> Difference | None:
    """Where these replies of an agent first differ from those it gave alone, if they do."""
    for turn, reply in enumerate(replies):
        alone = heard.alone[agent][turn].token_ids
        if reply.token_ids == alone:
            continue
        pairs = zip(reply.token_ids, alone, strict=False)
        at, pair = next(((n, p) for n, p in enumerate(pairs) if p[0] != p[1]), (-1, (-1, -1)))
        return Difference(agent, turn, at, *pair)
    return None


def _against_replay(loaded: LoadedModel, agent: int, turns: Turns) -> Difference | None:
    for turn, choices in enumerate(_replay(loaded, turns)):
        for at, (logits, said) in enumerate(zip(choices, turns[turn][1], strict=True)):
            if (expected := int(mx.argmax(logits))) != said:
                return Difference(agent, turn, at, said, expected)
    return None


def _turns(heard: Heard, agent: int) -> Turns:
    answers = [list(reply.token_ids) for reply in heard.alone[agent]]
    return list(zip(PROMPTS[agent], answers, strict=True))


def _margin_and_noise(kind: Kind, difference: Difference, heard: Heard) -> tuple[float, float]:
    """How far apart the two likeliest tokens were, and how far other orders of sums move them:
    other chunks of the prompts, other rows beside and, where it is not pinned, the other way to
    attend."""
    loaded = kind.load()
    turns = _turns(heard, difference.agent)[: difference.turn + 1]
    turns[-1] = turns[-1][0], turns[-1][1][: difference.at + 1]
    ours = _replay(loaded, turns)[-1][-1]
    others = [
        *(_replay(loaded, turns, chunk=chunk) for chunk in OTHER_CHUNKS),
        *(_replay(loaded, turns, beside=rows) for rows in COMPANY),
        *(_replay(_attended(loaded, mode), turns) for mode in MODES if not kind.grid),
    ]
    top = mx.sort(ours)[-2:]
    noise = max(float(mx.abs(other[-1][-1] - ours).max()) for other in others)
    return float(top[1] - top[0]), noise


def _attended(loaded: LoadedModel, mode: AttentionMode) -> LoadedModel:
    return replace(loaded, policy=replace(loaded.policy, mode=mode))


def _replay(
    loaded: LoadedModel, turns: Turns, *, chunk: int = CHUNK, beside: int = 0
) -> list[list[mx.array]]:
    """Logits [vocab] that choose each token of each turn. Prompts are prefilled in chunks of so
    many tokens; so many longer rows `beside` are fed the same behind a beginning of their own."""
    rows, row = _bare_rows(loaded, beside)

    def feed(tokens: list[int]) -> mx.array:
        logits = rows.forward(loaded.model, mx.array([tokens] * (beside + 1)))
        rows.evaluate()
        last: mx.array = logits[row, -1].astype(mx.float32)
        return last

    found: list[list[mx.array]] = []
    left: list[int] = []
    for prompt, answer in turns:
        left += prompt
        for start in range(0, len(left) - 1, chunk):
            feed(left[start : min(start + chunk, len(left) - 1)])
        found.append([feed([token]) for token in (left[-1], *answer[:-1])])
        left = answer[-1:]
    return found


def _bare_rows(loaded: LoadedModel, beside: int) -> tuple[Arena, int]:
    """An arena with an empty row and so many long ones `beside` it; the index of the empty one."""
    longest = max((turns[0] for turns in PROMPTS), key=len)[:CHUNK]
    rows, mine = new_arena(loaded), new_arena(loaded)
    for _ in range(beside):
        other = new_arena(loaded)
        other.add_row(0, len(longest))
        other.forward(loaded.model, mx.array([longest]))
        other.evaluate()
        rows.take(other, 0)
    mine.add_row(0, 0)
    return rows, rows.take(mine, 0)
