"""Speculation as users have it: the same answers, sooner where agents repeat what they know."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from makers import OpenSystem
from seeded import bug, seeded
from small_tokenizers import ASCII, Letters

from kvactors.actors import AgentSystem, DraftModel, InvalidConfig, Sampling, UnsupportedLayer
from kvactors.actors.testing import PuppetModel, use_puppet
from kvactors.core.model.worlds.world import make_world
from kvactors.core.schedule.speculation.acceptance import Costs
from kvactors.core.testing.families import build
from kvactors.core.testing.models import PlainTokenizer, tiny_llama, tiny_model
from kvactors.core.trace import DecodeStep

WAIT = 300
WORLDS = 6
FILE = "def all():\n" + "\n".join(
    f"    value_{n} = compute(part_{n % 7}, {n * 31 % 17})" for n in range(24)
)


def answers(
    open_system: OpenSystem, speculation: str | DraftModel, **options: object
) -> tuple[list[str], dict[str, int]]:
    """What agents of the default model answer about their worlds, all asked at once; what the
    system counted."""
    rng = np.random.default_rng(5)
    worlds = [make_world(rng, facts=16, names="seen") for _ in range(WORLDS)]
    system = open_system("default", store=False, speculation=speculation, **options)
    asked = []
    for number, world in enumerate(worlds):
        agent = system.spawn(f"{number}", system_prompt=world.system)
        agent.observe(" ".join(world.turns))
        asked += [agent.ask(fact.question) for fact in world.facts]
    found = [future.get(timeout=WAIT).text for future in asked]
    return found, system.stats()


@pytest.mark.slow
def test_the_default_model_answers_the_same(open_system: OpenSystem) -> None:
    plain, without = answers(open_system, "off")
    found, stats = answers(open_system, "auto")

    assert found == plain
    assert without["drafted_tokens"] == 0
    assert stats["accepted_tokens"] > 0


@pytest.mark.slow
def test_the_default_model_with_its_draft_model_answers_the_same(open_system: OpenSystem) -> None:
    # One after the other, and nobody repeats others: it is the draft model that is asked.
    alone = {"max_batch": 1, "isolation": "strict", "kv_bits": None}
    plain, without = answers(open_system, "off", **alone)
    found, stats = answers(open_system, DraftModel(), **alone)

    assert found == plain
    assert without["model_drafted_tokens"] == 0
    assert stats["model_accepted_tokens"] > 0.8 * stats["model_drafted_tokens"] > 0


def test_a_draft_model_of_another_tokenizer_is_refused_with_the_first_token_that_differs() -> None:
    def larger() -> tuple[object, object]:
        return tiny_model(vocab_size=256), PlainTokenizer(256)

    with pytest.raises(InvalidConfig, match=r"'larger' .* token 128 is '.x80' there"):
        AgentSystem(tiny_llama(), store=False, speculation=DraftModel(larger)).start()
    with pytest.raises(InvalidConfig, match=r"draft_model' has another tokenizer .*: token 0 is"):
        AgentSystem(tiny_llama(), store=False, speculation=DraftModel()).start()


def test_a_draft_model_whose_tokens_nobody_can_compare_is_refused() -> None:
    def mute() -> tuple[object, object]:
        return tiny_model(), Letters(ASCII)

    for model, draft in ((mute, tiny_llama()), (tiny_llama(), mute)):
        with pytest.raises(InvalidConfig, match="the tokenizer of 'mute' has no get_vocab"):
            AgentSystem(model, store=False, speculation=DraftModel(draft)).start()


def test_a_draft_model_with_fewer_rows_of_vocabulary_is_refused() -> None:
    def narrow() -> tuple[object, object]:
        return tiny_model(vocab_size=100), PlainTokenizer()

    with pytest.raises(InvalidConfig, match=r"'narrow' has 100 rows of vocabulary"):
        AgentSystem(tiny_llama(), store=False, speculation=DraftModel(narrow)).start()


def test_a_model_of_other_tokens_is_swapped_in_without_the_draft_model(
    open_system: OpenSystem,
) -> None:
    system = open_system(store=False, speculation=DraftModel(tiny_llama(num_hidden_layers=1)))

    system.swap_model("default")

    assert system.info.draft == ""
    assert system.spawn("a").ask("Hello.").get(timeout=WAIT).text


def test_a_draft_model_that_cannot_forget_is_refused() -> None:
    def sliding() -> tuple[object, object]:
        return build("gpt_oss"), PlainTokenizer()

    with pytest.raises(UnsupportedLayer, match=r"layer 0 of the draft model .* RotatingKVCache"):
        AgentSystem(tiny_llama(), store=False, speculation=DraftModel(sliding)).start()


def test_a_system_says_what_drafts_for_it(open_system: OpenSystem) -> None:
    draft = DraftModel(tiny_llama(num_hidden_layers=1))

    assert open_system(store=False, speculation=draft).info.draft == "tiny_llama"
    assert open_system(store=False).info.draft == ""
    assert open_system("default", store=False).info.draft == ""
    shipped = {"store": False, "speculation": DraftModel()}
    assert open_system("default", **shipped).info.draft == "default"
    assert open_system("default", **shipped, reproducible=True).info.draft == ""


def says_file(open_system: OpenSystem, **options: object) -> AgentSystem:
    """A system of a puppet that says one answer."""
    puppet = PuppetModel([FILE])
    prepare = partial(use_puppet, puppet=puppet)
    return open_system(puppet, store=False, prepare=prepare, **options)


def copied(open_system: OpenSystem, **options: object) -> AgentSystem:
    """One in which it has said its prompt again."""
    system = says_file(open_system, **options)
    reply = system.spawn("a").ask(FILE, sampling=Sampling(max_tokens=900)).get(timeout=WAIT)
    assert reply.text == FILE
    return system


def test_who_copies_what_it_was_told_takes_several_tokens_a_step(open_system: OpenSystem) -> None:
    stats = copied(open_system).stats()

    assert stats["accepted_tokens"] > stats["generated_tokens"] / 2
    assert stats["accepted_tokens"] > 0.7 * stats["drafted_tokens"]
    assert stats["own_accepted_tokens"] == stats["accepted_tokens"]
    assert stats["own_drafted_tokens"] == stats["drafted_tokens"]


@pytest.mark.parametrize("stop", ["part_6", "value_17 = comp", "\n    value_9", "8)"])
def test_a_stop_string_within_a_draft_ends_the_answer_where_it_ends_without(
    open_system: OpenSystem, stop: str
) -> None:
    def ended(speculation: str) -> tuple[Any, dict[str, int]]:
        system = says_file(open_system, speculation=speculation)
        agent = system.spawn("a")
        sampling = Sampling(max_tokens=900, stop=(stop,))
        with system.trace() as recorder:
            reply = agent.ask(FILE, sampling=sampling).get(timeout=WAIT)
        left = agent.transcript().token_ids
        steps = [event for event in recorder.events if isinstance(event, DecodeStep)]
        stats = system.stats() | {"computed": sum(len(step.agent_ids) for step in steps)}
        return (reply.text, reply.token_ids, reply.finish_reason, left), stats

    plain, _ = ended("off")
    # As many tokens as there may be, however long a check takes here.
    with seeded(bug(Costs, "of")(lambda _: lambda *_: 1.0)):
        found, stats = ended("auto")

    assert found == plain
    assert (found[0], found[2]) == (FILE.partition(stop)[0], "stop")
    assert stats["accepted_tokens"] > stats["generated_tokens"] / 2
    # Some was right behind it, in the same draft, is in no answer, and does not count.
    assert stats["computed"] > stats["generated_tokens"] == len(found[1])


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"speculation": "off"}, {"reproducible": True}])
def test_it_is_off_where_it_is_turned_off_and_where_runs_repeat(
    open_system: OpenSystem, options: dict[str, object]
) -> None:
    assert copied(open_system, **options).stats()["drafted_tokens"] == 0


def test_other_words_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="speculation is"):
        AgentSystem(speculation="always")
    with pytest.raises(InvalidConfig, match="a draft model is a name"):
        AgentSystem(speculation=DraftModel(7))  # type: ignore[arg-type]
