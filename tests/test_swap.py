"""Another model under running agents: what waits, what is kept, and what comes back warm."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from small_tokenizers import build, chat_format

from kvactors.actors import (
    Agent,
    AgentSystem,
    BlockingCall,
    ContextExceeded,
    EngineDied,
    Reply,
    Sampling,
    SwapFailed,
    SystemStopped,
)
from kvactors.actors.agent import AgentActor
from kvactors.actors.futures import mark_pool_thread
from kvactors.actors.messages import Restored
from kvactors.core.errors import InvalidConfig, KvactorsError, ModelNotFound, TemplateError
from kvactors.core.events import ExportedKV
from kvactors.core.testing import Faulty, PlainTokenizer, snap_to_grid, tiny_model
from kvactors.persistence.store import Store

OpenSystem = Callable[..., AgentSystem]
WAIT = 60
ANSWER = Sampling(max_tokens=6)
STORY = "He said: be calm! Hello world, hello again. " * 12


class Grid:
    """A grid model with one of the small tokenizers. `memory`: what MLX held when it was asked
    for, each time."""

    def __init__(self, algorithm: str, template: str = "chatml", seed: int = 1) -> None:
        self.name = f"{algorithm} {template} {seed}"
        self.algorithm, self.template, self.seed = algorithm, template, seed
        self.memory: list[int] = []

    def __call__(self) -> tuple[Any, Any]:
        self.memory.append(mx.get_active_memory())
        model = tiny_model(seed=self.seed, vocab_size=build(self.algorithm).get_vocab_size())
        return snap_to_grid(model), chat_format(self.algorithm, self.template).tokenizer


class Held(Grid):
    """A grid model whose steps can be held at a gate."""

    def __init__(self) -> None:
        super().__init__("bytes")
        self.gate = threading.Event()
        self.model: Any = None

    def __call__(self) -> tuple[Any, Any]:
        model, tokenizer = super().__call__()
        self.model = Faulty(model)
        return self.model, tokenizer

    def hold(self) -> None:
        self.model.arm(hold=self.gate)


FIRST, SECOND = Grid("bytes"), Grid("unigram", "default system", seed=2)


@pytest.fixture
def open_grid(open_system: OpenSystem) -> OpenSystem:
    """Systems whose models compute exactly."""

    def start(model: Any = FIRST, **options: Any) -> AgentSystem:
        return open_system(model, attention="packed", **options)

    return start


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Released each time that an agent was told to pause."""
    told, true = threading.Semaphore(0), AgentActor._pause

    def noted(self: AgentActor, message: Any) -> None:
        true(self, message)
        told.release()

    monkeypatch.setattr(AgentActor, "_pause", noted)
    return told


def ask(agent: Agent, text: Any = "Hello", sampling: Sampling = ANSWER) -> Reply:
    """One turn, waited for, KV on disk."""
    reply: Reply = agent.ask(text, sampling=sampling).get(timeout=WAIT)
    reply.cached.get(timeout=WAIT)
    return reply


def computed_alone(system: AgentSystem, agent: Agent, reply: Reply) -> bool:
    """Whether an agent that is told all of it at once, as token ids, answers the same."""
    tokens = list(agent.transcript().token_ids)
    assert tokens[len(tokens) - len(reply.token_ids) :] == list(reply.token_ids)
    alone = system.spawn("alone")
    try:
        prompt = tokens[: len(tokens) - len(reply.token_ids)]
        return ask(alone, prompt).token_ids == reply.token_ids
    finally:
        system.forget("alone")


def swapping(system: AgentSystem, model: Any, **options: Any) -> "Background":
    return Background(lambda: system.swap_model(model, **options))


class Background:
    """A call on a thread of its own."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(call,))
        self._thread.start()

    def _run(self, call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:
            self.error = error

    def end(self) -> BaseException | None:
        """What it raised, once it has ended."""
        self._thread.join(WAIT)
        assert not self._thread.is_alive()
        return self.error


# -- there and back ------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [True, False], ids=["with a store", "without"])
def test_agents_go_on_under_another_model_and_are_warm_when_the_first_is_back(
    open_grid: OpenSystem, kept: bool
) -> None:
    system = open_grid(**({} if kept else {"store": False}))
    alice = system.spawn("alice", "Be brief.")
    ask(alice, STORY)
    told = alice.transcript()

    system.swap_model(SECOND)
    assert [turn.text for turn in alice.transcript().turns] == [turn.text for turn in told.turns]
    assert "Be brief." in alice.transcript().text
    retokenized = len(alice.transcript().token_ids)
    other = ask(alice, "be calm")
    assert (other.cache, other.usage.reused_tokens) == ("cold", 0)
    assert other.usage.retokenized_tokens == retokenized
    assert computed_alone(system, alice, other)
    assert ask(alice).cache == "hot"

    system.swap_model(FIRST)
    assert alice.transcript().token_ids[: len(told.token_ids)] == told.token_ids
    again = ask(alice, "world")
    assert again.cache == ("warm" if kept else "cold")
    assert again.usage.reused_tokens == (len(told.token_ids) - 1 if kept else 0)
    assert 0 < again.usage.retokenized_tokens < again.usage.prompt_tokens - len(told.token_ids)
    assert computed_alone(system, alice, again)
    assert system.spawn("alice") is alice


def test_one_tokenizer_under_two_models_keeps_every_token_and_shares_no_kv(
    open_grid: OpenSystem,
) -> None:
    system = open_grid(FIRST)
    alice = system.spawn("alice")
    ask(alice, STORY)
    tokens = alice.transcript().token_ids

    system.swap_model(Grid("bytes", seed=9))

    assert alice.transcript().token_ids == tokens
    reply = ask(alice)
    assert (reply.cache, reply.usage.retokenized_tokens) == ("cold", 0)
    assert computed_alone(system, alice, reply)


@pytest.mark.parametrize("model", [FIRST, SECOND], ids=["first", "second"])
def test_after_a_restart_either_model_finds_its_kv(open_grid: OpenSystem, model: Grid) -> None:
    system = open_grid(FIRST)
    alice = system.spawn("alice")
    ask(alice, STORY)
    system.swap_model(SECOND)
    ask(alice)
    if model is FIRST:
        system.swap_model(FIRST)
    turns = alice.transcript().turns
    system.stop(timeout=WAIT)

    again = open_grid(model)
    restored = again.spawn("alice")

    assert restored.transcript().turns == turns
    reply = ask(restored)
    assert reply.cache == "warm"
    assert computed_alone(again, restored, reply)


def test_forks_and_rewinds_after_a_swap(open_grid: OpenSystem) -> None:
    system = open_grid(FIRST)
    alice = system.spawn("alice")
    ask(alice, STORY)
    ask(alice)
    system.swap_model(SECOND)

    bob = system.spawn("bob", from_="alice")
    assert bob.transcript() == alice.transcript()
    alice.rewind().get(timeout=WAIT)
    bob.rewind(to_token=50).get(timeout=WAIT)
    replies = {agent: ask(agent, "be calm") for agent in (alice, bob)}
    for agent, reply in replies.items():
        assert computed_alone(system, agent, reply)

    system.swap_model(FIRST)
    for agent in replies:
        reply = ask(agent, "world")
        assert reply.usage.retokenized_tokens > 0
        assert computed_alone(system, agent, reply)
    turns = [agent.transcript().turns for agent in replies]
    assert ask(alice).cache == "hot"
    assert alice.rewind().get(timeout=WAIT).turns == len(turns[0])
    system.stop(timeout=WAIT)
    again = open_grid(FIRST)
    assert [again.spawn(name).transcript().turns for name in ("alice", "bob")] == turns


def test_what_a_swap_does_not_name_stays_and_what_depends_on_the_model_is_found_anew(
    open_grid: OpenSystem,
) -> None:
    system = open_grid(store=False, kv_bits=8, max_batch=3, memory_budget="40MB")
    ask(system.spawn("alice"), STORY)
    before = system.info

    system.swap_model(SECOND, context=64)

    info, stats = system.info, system.stats()
    assert (info.name, system.chat, system.spec) == (SECOND.name, info.chat, info.spec)
    assert info.spec.vocab_size != before.spec.vocab_size
    assert {layer.bits for layer in info.spec.layers} == {8}
    assert stats["budget_bytes"] == info.memory_budget == 40_000_000
    assert (stats["misses"], stats["hot_agents"], stats["hot_bytes"]) == (0, 0, 0)
    with pytest.raises(ContextExceeded, match="exceed the context of 64 tokens"):
        ask(system.spawn("alice"))
    system.swap_model(FIRST, kv_bits=4, context=None)
    assert {layer.bits for layer in system.spec.layers} == {4}
    assert system.spec.context == before.spec.context
    assert ask(system.spawn("alice")).cache == "cold"


def test_the_old_models_memory_is_free_before_the_new_one_is_loaded(
    open_grid: OpenSystem,
) -> None:
    system = open_grid(FIRST)
    for number in range(4):
        ask(system.spawn(str(number)), STORY)
    weights = mx.get_active_memory() - FIRST.memory[-1]
    second = Grid("unigram")

    system.swap_model(second)

    assert second.memory[-1] - FIRST.memory[-1] < 0.05 * weights


# -- turns meanwhile -----------------------------------------------------------------------


def test_turns_that_run_end_first_and_those_that_wait_are_the_new_models(
    open_grid: OpenSystem, pauses: threading.Semaphore
) -> None:
    held = Held()
    system = open_grid(held)
    alice, bob = system.spawn("alice"), system.spawn("bob")
    held.hold()
    running = alice.stream("Hello", sampling=ANSWER)
    assert held.model.reached.wait(WAIT)
    waiting = alice.stream("world", sampling=ANSWER)
    swap = swapping(system, SECOND)
    for _ in range(2):
        assert pauses.acquire(timeout=WAIT)
    late = bob.ask("again", sampling=ANSWER)
    carol = system.spawn("carol")
    new = carol.ask([5, 6, 7], sampling=ANSWER)
    held.gate.set()

    assert swap.end() is None

    assert "".join(piece.text for piece in running) == running.reply.text
    assert "".join(piece.text for piece in waiting) == waiting.reply.text
    assert running.reply.usage.retokenized_tokens == 0
    assert waiting.reply.usage.retokenized_tokens > 0
    assert [bool(turn.source) for turn in alice.transcript().turns] == [True, True, False, False]
    assert computed_alone(system, alice, waiting.reply)
    assert computed_alone(system, bob, late.get(timeout=WAIT))
    assert computed_alone(system, carol, new.get(timeout=WAIT))
    # Token ids of the old tokenizer are the new one's of the same text.
    assert carol.transcript().turns[0].text == chat_format("bytes").decode([5, 6, 7])
    assert carol.transcript().turns[0].token_ids != (5, 6, 7)


def test_turns_that_take_too_long_go_on_and_the_model_stays(
    open_grid: OpenSystem, pauses: threading.Semaphore
) -> None:
    held = Held()
    system = open_grid(held)
    alice = system.spawn("alice")
    held.hold()
    running, waiting = [alice.ask(text, sampling=ANSWER) for text in ("Hello", "world")]
    assert held.model.reached.wait(WAIT)

    with pytest.raises(SwapFailed, match=r"1 turns still ran after 0\.1 s.*bytes chatml"):
        system.swap_model(SECOND, timeout=0.1)
    held.gate.set()

    assert running.get(timeout=WAIT).usage.retokenized_tokens == 0
    assert waiting.get(timeout=WAIT).cache == "hot"
    system.swap_model(SECOND, timeout=WAIT)
    assert ask(alice).cache == "cold"


def test_asks_that_race_with_swaps_each_end_in_a_reply_or_an_error(
    open_grid: OpenSystem,
) -> None:
    system = open_grid(FIRST)
    done = threading.Event()
    ended: list[Reply | KvactorsError] = []

    def talk(name: str) -> None:
        agent = system.spawn(name)
        while not done.is_set():
            try:
                ended.append(agent.ask("Hello world", sampling=ANSWER).get(timeout=WAIT))
            except KvactorsError as error:
                ended.append(error)

    talkers = [Background(lambda name=name: talk(name)) for name in "abc"]  # type: ignore[misc]
    for model in (SECOND, FIRST, Grid("wordpiece", "none"), FIRST):
        system.swap_model(model)
    done.set()

    assert [talker.end() for talker in talkers] == [None] * 3
    assert {type(end) for end in ended} == {Reply}
    assert system.wait_idle(WAIT)
    turns = {}
    for agent in system.agents():
        assert computed_alone(system, agent, ask(agent))
        turns[agent.agent_id] = agent.transcript().turns
    system.stop(timeout=WAIT)
    again = open_grid(FIRST)
    assert {name: again.spawn(name).transcript().turns for name in "abc"} == turns


def test_an_agent_may_be_forgotten_while_its_turn_holds_a_swap_up(
    open_grid: OpenSystem, pauses: threading.Semaphore
) -> None:
    held = Held()
    system = open_grid(held)
    alice = system.spawn("alice")
    held.hold()
    running, waiting = [alice.ask(text, sampling=ANSWER) for text in ("Hello", "world")]
    assert held.model.reached.wait(WAIT)
    swap = swapping(system, SECOND)
    assert pauses.acquire(timeout=WAIT)
    forgetting = Background(lambda: system.forget("alice"))
    held.gate.set()

    assert (swap.end(), forgetting.end()) == (None, None)
    for future in (running, waiting):
        if future.done:
            continue
        with pytest.raises(KvactorsError):
            future.get(timeout=WAIT)
    assert system.wait_idle(WAIT)
    assert ask(system.spawn("alice")).usage.retokenized_tokens == 0


def test_a_stop_ends_a_swap_that_waits_and_every_turn(
    open_grid: OpenSystem, pauses: threading.Semaphore
) -> None:
    held = Held()
    system = open_grid(held)
    alice = system.spawn("alice")
    held.hold()
    running, waiting = [alice.ask(text, sampling=ANSWER) for text in ("Hello", "world")]
    assert held.model.reached.wait(WAIT)
    swap = swapping(system, SECOND)
    assert pauses.acquire(timeout=WAIT)

    stopping = Background(system.stop)
    assert isinstance(swap.end(), SystemStopped)
    held.gate.set()

    assert stopping.end() is None
    assert [future.get(timeout=WAIT).finish_reason for future in (running, waiting)] == [
        "length"
    ] * 2
    with pytest.raises(SystemStopped):
        system.swap_model(SECOND)


def test_kv_that_was_asked_for_under_the_old_model_is_not_the_new_ones(
    open_grid: OpenSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = open_grid(FIRST)
    alice = system.spawn("alice")
    ask(alice, STORY)
    old, twin = system.info.fingerprint, Grid("bytes", seed=9)
    true = Store.read_kv

    def late(self: Store, agent_id: str, fingerprint: str) -> Any:
        if fingerprint != old:
            stored = [
                ExportedKV(part.start, part.end, part.tokens_hash, part.layout, part.tensors)
                for part in true(self, agent_id, old)
            ]
            assert stored
            system._crew.gpu.tell(Restored(agent_id, old, stored))
        return true(self, agent_id, fingerprint)

    monkeypatch.setattr(Store, "read_kv", late)
    system.swap_model(twin)

    reply = ask(alice)
    assert (reply.cache, reply.usage.reused_tokens) == ("cold", 0)
    assert computed_alone(system, alice, reply)


# -- when it fails -------------------------------------------------------------------------


def test_a_model_that_is_not_there_is_refused_before_the_old_one_goes(
    open_grid: OpenSystem, tmp_path: Path
) -> None:
    system = open_grid(FIRST)
    alice = system.spawn("alice")
    ask(alice, STORY)

    with pytest.raises(SwapFailed, match=f"goes on with {FIRST.name}") as failure:
        system.swap_model(tmp_path / "nowhere")

    assert isinstance(failure.value.__cause__, ModelNotFound)
    assert ask(alice).cache == "hot"


def test_when_the_new_model_cannot_be_loaded_the_old_one_goes_on_warm(
    open_grid: OpenSystem,
) -> None:
    system = open_grid(FIRST)
    alice = system.spawn("alice", "Be brief.")
    ask(alice, STORY)
    weights = mx.get_active_memory() - FIRST.memory[-1]

    def half() -> Any:
        model = tiny_model(vocab_size=4000)
        raise RuntimeError(f"out of luck with {model}")

    with pytest.raises(SwapFailed, match=r"half cannot be loaded \(RuntimeError: out of luck"):
        system.swap_model(half)

    assert FIRST.memory[-1] - FIRST.memory[-2] < 0.05 * weights
    assert system.info.name == FIRST.name
    reply = ask(alice)
    assert (reply.cache, reply.usage.retokenized_tokens) == ("warm", 0)
    assert computed_alone(system, alice, reply)
    system.swap_model(SECOND)
    assert ask(alice).cache == "cold"


def test_when_the_old_model_cannot_be_loaded_again_every_future_says_so(
    open_grid: OpenSystem, pauses: threading.Semaphore
) -> None:
    class Once(Held):
        def __call__(self) -> tuple[Any, Any]:
            if self.model is not None:
                raise OSError("unplugged")
            return super().__call__()

    def broken() -> Any:
        raise RuntimeError("broken")

    once = Once()
    system = open_grid(once)
    alice = system.spawn("alice")
    told = ask(alice, STORY)
    once.hold()
    running = alice.ask("Hello", sampling=ANSWER)
    assert once.model.reached.wait(WAIT)
    swap = swapping(system, broken)
    assert pauses.acquire(timeout=WAIT)
    waiting = alice.ask("world", sampling=ANSWER)
    once.gate.set()

    error = swap.end()

    assert isinstance(error, SwapFailed)
    assert "cannot be loaded, nor bytes chatml 1 again (OSError: unplugged)" in str(error)
    assert running.get(timeout=WAIT).finish_reason == "length"
    with pytest.raises(EngineDied):
        waiting.get(timeout=WAIT)
    with pytest.raises(EngineDied):
        alice.ask("again")
    with pytest.raises((SwapFailed, EngineDied)):
        system.swap_model(SECOND)
    turns = alice.transcript().turns
    system.stop(timeout=WAIT)
    restored = open_grid(Held()).spawn("alice")
    assert restored.transcript().turns == turns
    assert told.text == turns[1].text
    assert ask(restored).cache == "warm"


def test_an_agent_that_the_new_template_cannot_render_waits_for_the_next_model(
    open_grid: OpenSystem,
) -> None:
    class Strict(Grid):
        def __call__(self) -> tuple[Any, Any]:
            model, tokenizer = super().__call__()
            template = tokenizer.chat_template
            tokenizer = build_strict(tokenizer)
            assert tokenizer.chat_template != template
            return model, tokenizer

    def build_strict(tokenizer: Any) -> Any:
        from copy import copy

        strict = copy(tokenizer)
        strict.chat_template = (
            "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}"
            "{% endif %}{% endfor %}" + tokenizer.chat_template
        )
        return strict

    system = open_grid(FIRST)
    alice, bob = system.spawn("alice"), system.spawn("bob")
    alice.observe("3 degrees", role="tool").get(timeout=WAIT)
    ask(bob)

    system.swap_model(Strict("unigram"))

    with pytest.raises(TemplateError, match="no tools"):
        ask(alice)
    assert ask(bob).cache == "cold"
    system.swap_model(FIRST)
    assert ask(alice).cache == "warm"


def test_what_cannot_be_a_swap_is_refused_and_changes_nothing(open_grid: OpenSystem) -> None:
    system = open_grid(FIRST)
    alice = system.spawn("alice")
    ask(alice)

    for wrong, options in [(3, {}), (lambda: None, {}), (SECOND, {"kv_bits": 5})]:
        with pytest.raises(InvalidConfig):
            system.swap_model(wrong, **options)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="max_batch"):
        system.swap_model(SECOND, max_batch=2)  # type: ignore[call-arg]
    with pytest.raises(SystemStopped):
        AgentSystem(FIRST, store=False).swap_model(SECOND)

    def on_a_pool_thread() -> None:
        mark_pool_thread()
        system.swap_model(SECOND)

    assert isinstance(Background(on_a_pool_thread).end(), BlockingCall)
    assert system.info.name == FIRST.name
    assert ask(alice).cache == "hot"


def test_token_ids_beyond_the_new_models_embedding_end_in_an_error(
    open_grid: OpenSystem,
) -> None:
    class Small(Grid):
        """The same tokenizer over fewer rows."""

        def __call__(self) -> tuple[Any, Any]:
            return snap_to_grid(tiny_model(seed=3, vocab_size=96)), PlainTokenizer(128)

    class Large(Small):
        def __call__(self) -> tuple[Any, Any]:
            return snap_to_grid(tiny_model(seed=3)), PlainTokenizer(128)

    system = open_grid(Large("large"))
    alice = system.spawn("alice")
    ask(alice, [100, 101])
    system.swap_model(Small("small"))

    with pytest.raises(KvactorsError, match="outside the vocabulary: 0 <= id < 96"):
        ask(alice, [1])
