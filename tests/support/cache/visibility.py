"""What a token of the cache family sees, told with sets: the oracle of its bookkeeping, with which
it shares no code. Slow and simple: tokens have names, and no cells."""

from dataclasses import dataclass, field

__all__ = ["PlainSequences", "PlainTree", "Token"]


@dataclass(eq=False)
class Token:
    """One token; `position` as it was given, `owners` the sequences that hold it."""

    name: int
    position: int
    owners: set[int] = field(default_factory=set)


class PlainSequences:
    """Tokens and who owns them."""

    def __init__(self) -> None:
        self.tokens: set[Token] = set()
        self.made = 0

    def add(self, sequence: int, position: int) -> Token:
        self.made += 1
        token = Token(self.made, position, {sequence})
        self.tokens.add(token)
        return token

    def of(self, sequence: int) -> set[Token]:
        return {token for token in self.tokens if sequence in token.owners}

    def at(self, sequence: int, start: int = 0, end: int | None = None) -> set[Token]:
        return {
            token
            for token in self.of(sequence)
            if token.position >= start and (end is None or token.position < end)
        }

    def sees(self, sequence: int, position: int) -> set[Token]:
        return {token for token in self.of(sequence) if token.position <= position}

    def fork(self, source: int, target: int, start: int = 0, end: int | None = None) -> None:
        for token in self.at(source, start, end):
            token.owners.add(target)

    def clashes(self, source: int, target: int, start: int = 0, end: int | None = None) -> bool:
        """Whether the target would have two tokens at one position."""
        theirs = {token.position for token in self.of(target) - self.of(source)}
        return any(token.position in theirs for token in self.at(source, start, end))

    def remove(self, sequence: int, start: int = 0, end: int | None = None) -> None:
        for token in self.at(sequence, start, end):
            token.owners.discard(sequence)
        self.tokens = {token for token in self.tokens if token.owners}

    def keep(self, sequence: int) -> None:
        self.tokens = self.of(sequence)
        for token in self.tokens:
            token.owners = {sequence}

    def next_position(self, sequence: int) -> int:
        return max((token.position + 1 for token in self.of(sequence)), default=0)


class PlainTree:
    """What is committed, by name, and a tree of names behind it."""

    def __init__(self) -> None:
        self.committed: list[int] = []
        self.parents: dict[int, int | None] = {}
        self.made = 0

    def append(self) -> int:
        self.made += 1
        self.committed.append(self.made)
        return self.made

    def grow(self, parent: int | None) -> int:
        self.made += 1
        self.parents[self.made] = parent
        return self.made

    def chain(self, node: int | None) -> list[int]:
        """From the root down to a node."""
        return [] if node is None else [*self.chain(self.parents[node]), node]

    def position(self, node: int) -> int:
        return len(self.committed) + len(self.chain(node)) - 1

    def sees(self, node: int) -> set[int]:
        if node in self.committed:
            return set(self.committed[: self.committed.index(node) + 1])
        return {*self.committed, *self.chain(node)}

    def commit(self, node: int | None) -> None:
        self.committed += self.chain(node)
        self.parents = {}
