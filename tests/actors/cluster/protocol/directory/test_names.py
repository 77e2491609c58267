"""Pages of names: all of them, in order, and each for what is on it."""

from typing import ClassVar

from hypothesis import given
from hypothesis import strategies as st

from kvactors.actors.cluster.protocol.directory.names import Names

COUNT, PAGE = 4096, 64


class Counted(str):
    """A name that counts how often names are compared."""

    compared: ClassVar[int] = 0
    __slots__ = ()

    def __lt__(self, other: str) -> bool:
        Counted.compared += 1
        return str.__lt__(self, other)


def pages(names: Names, count: int) -> list[list[str]]:
    found = [names.page("", count)]
    while len(found[-1]) == count:
        last = found[-1][-1]
        found.append(names.page(last, count))
        assert last not in found[-1], "pages that begin again have no end"
    return found


@given(st.lists(st.tuples(st.booleans(), st.text(max_size=2)), max_size=40), st.integers(1, 5))
def test_pages_are_all_names_in_order(changes: list[tuple[bool, str]], count: int) -> None:
    names, there = Names(), set[str]()
    for comes, name in changes:
        if comes and name and name not in there:
            names.add(name)
            there.add(name)
        elif not comes and name in there:
            names.remove(name)
            there.discard(name)

    assert [name for page in pages(names, count) for name in page] == sorted(there)


def test_a_page_does_not_cost_what_all_of_them_do() -> None:
    names = Names()
    for number in range(COUNT):
        names.add(Counted(f"{number * 7919 % COUNT:05}"))
    names.page("", PAGE)
    Counted.compared = 0

    assert len(pages(names, PAGE)) == COUNT // PAGE + 1

    assert Counted.compared <= (COUNT // PAGE + 1) * COUNT.bit_length()
