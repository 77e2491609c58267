"""What is forgotten with an agent: what it alone has said, and nothing is looked at but that."""

import sqlite3
from contextlib import closing
from pathlib import Path

from kvactors.actors.frontends.server.identity.index import Index, Known, Place

START = b"start"


def chain(agent: int, number: int) -> bytes:
    return b"%08d%08d" % (agent, number)


def known(name: str) -> Known:
    """An agent of no key, without tools."""
    return Known(name, "", "", "{}", "{}", named=False)


def filled(agents: int) -> Index:
    """An index of so many agents that have said a hundred messages each."""
    index = Index(None)
    for agent in range(agents):
        name, hashes = f"c-{agent}", [chain(agent, number) for number in range(100)]
        index.begin(known(name))
        places = [Place(hash_, name, n, "mark", "{}") for n, hash_ in enumerate(hashes, 1)]
        index.note(known(name), 0, places)
        index.note_said([START, *hashes], ["said"] * 100)
    return index


def steps_to_forget(agents: int) -> int:
    """Hundreds of SQLite's own steps that it takes to forget one of so many agents."""
    index, steps = filled(agents), list[None]()
    index.connection.set_progress_handler(lambda: steps.append(None), 100)
    index.forget("c-0")
    index.connection.set_progress_handler(None, 0)
    index.close()
    return len(steps)


def test_to_forget_one_of_many_agents_costs_no_more_than_one_of_few() -> None:
    assert steps_to_forget(100) < 1.5 * steps_to_forget(2)


def test_what_the_forgotten_alone_said_is_gone_and_what_another_said_too_stays() -> None:
    index = filled(2)
    index.note(known("c-1"), 100, [Place(chain(0, 0), "c-1", 101, "mark", "{}")])

    index.forget("c-0")

    assert index.said_behind(START) == ["said", "said"]
    assert index.said_behind(chain(0, 0)) == []
    assert index.said_behind(chain(1, 0)) == ["said"]
    index.close()


def test_what_an_agent_went_back_behind_is_gone() -> None:
    index = filled(1)

    index.note(known("c-0"), 50, [])

    assert index.said_behind(chain(0, 48)) == ["said"]
    assert index.said_behind(chain(0, 49)) == []
    index.close()


def test_an_answer_that_its_agent_went_back_behind_is_gone_and_one_that_another_knows_stays() -> (
    None
):
    with closing(Index(None)) as index:
        for name in ("c-0", "c-1"):
            index.begin(known(name))
        for number in range(3):
            place = Place(chain(0, number), "c-0", number + 1, "mark", "{}")
            index.note(known("c-0"), number, [place], f"answer {number}")
        index.note(known("c-1"), 0, [Place(chain(0, 2), "c-1", 3, "mark", "{}")])

        index.note(known("c-0"), 0, [Place(chain(0, 0), "c-0", 1, "mark", "{}")], "again")

        found = [index.answer("", f"answer {number}") for number in range(3)]
        assert found == [chain(0, 0), None, chain(0, 2)]
        assert index.answer("", "again") == chain(0, 0)


def test_answers_that_an_index_of_before_left_behind_are_gone_when_it_is_opened(
    tmp_path: Path,
) -> None:
    path = tmp_path / "clients.db"
    with closing(Index(path)) as index:
        index.begin(known("c-0"))
        index.note(known("c-0"), 0, [Place(chain(0, 0), "c-0", 1, "mark", "{}")], "kept")
    with closing(sqlite3.connect(path)) as old:
        old.execute("insert into answers values ('left', '', x'00', 'c-0', 0)")
        old.execute("pragma user_version = 1")
        old.commit()

    with closing(Index(path)) as again:
        assert again.answer("", "kept") == chain(0, 0)
        assert again.answer("", "left") is None


def test_texts_that_an_index_of_before_left_behind_are_gone_when_it_is_opened(
    tmp_path: Path,
) -> None:
    path, kept, left = tmp_path / "clients.db", chain(0, 0), chain(0, 99)
    with closing(Index(path)) as index:
        index.begin(known("c-0"))
        index.note(known("c-0"), 0, [Place(kept, "c-0", 1, "mark", "{}")])
        index.note_said([START, kept, left], ["known", "left"])
    with closing(sqlite3.connect(path)) as old:
        old.execute("pragma user_version = 0")

    with closing(Index(path)) as again:
        assert again.said_behind(START) == ["known"]
        assert again.said_behind(kept) == []
