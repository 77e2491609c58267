"""BlockPool: who holds how many 256-token blocks, and what is free. No tensors.

A block is accounting for BLOCK_TOKENS tokens of one agent over all layers. A hot agent
holds the blocks of its cache, a running turn also those it may still grow into; blocks
can be shared by agents with a common beginning, and are freed by the last holder [write-up, 3.1].
"""

from collections import Counter

from kvactors.core.errors import MemoryExceeded

__all__ = ["BLOCK_TOKENS", "BlockPool", "block_floor", "blocks_for"]

BLOCK_TOKENS = 256


def blocks_for(tokens: int) -> int:
    """Blocks needed for `tokens` tokens."""
    return -(-tokens // BLOCK_TOKENS)


def block_floor(tokens: int) -> int:
    """Tokens of the full blocks within `tokens` tokens."""
    return tokens // BLOCK_TOKENS * BLOCK_TOKENS


class BlockPool:
    """Bounded, reference-counted accounting of blocks. Not thread-safe: GPU thread only."""

    def __init__(self, total: int) -> None:
        if total < 1:
            raise MemoryExceeded(
                f"the memory budget holds {total} blocks of {BLOCK_TOKENS} tokens; 1 is needed"
            )
        self.total = total
        self._free = list(range(total - 1, -1, -1))
        self._references: Counter[int] = Counter()
        # Of an agent in order: block i covers tokens [256 i, 256 (i + 1)).
        self._agents: dict[str, list[int]] = {}

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    @property
    def used_blocks(self) -> int:
        """Blocks that somebody holds."""
        return self.total - len(self._free)

    def held(self, agent_id: str) -> int:
        """Blocks held by one agent."""
        return len(self._agents.get(agent_id, ()))

    def missing(self, agent_id: str, tokens: int) -> int:
        """Blocks the agent would need beyond those it holds, for `tokens` tokens."""
        return max(0, blocks_for(tokens) - self.held(agent_id))

    def allocate(self, agent_id: str, tokens: int) -> None:
        """Grow the agent to hold `tokens` tokens. Raises MemoryExceeded, changing nothing."""
        need = self.missing(agent_id, tokens)
        if need > len(self._free):
            raise MemoryExceeded(
                f"cannot hold {tokens} tokens of {agent_id!r}: {need} more blocks needed, "
                f"{self.free_blocks} of {self.total} free"
            )
        blocks = self._agents.setdefault(agent_id, [])
        for _ in range(need):
            block = self._free.pop()
            self._references[block] = 1
            blocks.append(block)

    def shrink(self, agent_id: str, tokens: int) -> None:
        """Give back the blocks beyond `tokens` tokens."""
        blocks = self._agents.get(agent_id)
        if blocks is None:
            return
        while len(blocks) > blocks_for(tokens):
            self._drop(blocks.pop())
        if not blocks:
            del self._agents[agent_id]

    def share(self, parent: str, child: str, tokens: int) -> None:
        """Let `child` start from the parent's full blocks within `tokens` tokens, uncopied."""
        assert not self.held(child), f"{child!r} already holds blocks"
        # One with less than a block may hold none.
        shared = self._agents.get(parent, [])[: tokens // BLOCK_TOKENS]
        for block in shared:
            self._references[block] += 1
        self._agents[child] = shared

    def free(self, agent_id: str) -> None:
        """Give back everything the agent holds; a stranger holds nothing."""
        self.shrink(agent_id, 0)

    def check(self) -> None:
        """Prove the invariant: free and referenced blocks partition the pool exactly."""
        counted = Counter(block for blocks in self._agents.values() for block in blocks)
        free = set(self._free)
        assert counted == +self._references, "references differ from the blocks that agents hold"
        assert free.isdisjoint(counted), "a held block is free"
        assert len(free) == len(self._free), "a block is free twice"
        assert len(counted) + len(self._free) == self.total, "blocks were lost"

    def _drop(self, block: int) -> None:
        self._references[block] -= 1
        if self._references[block] == 0:
            del self._references[block]
            self._free.append(block)
