"""What two agents have in common is held once: the beginning of what they were told.

A whole system prompt is found by its hash, anything else by the hashes of its blocks. GPU thread
only.
"""

import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping

from kvactors.core.cache.blocks import BLOCK_TOKENS, block_floor
from kvactors.core.conversation.hashing import common_prefix, prefix_hashes
from kvactors.core.engine.hot_cache import HotCache, HotCaches
from kvactors.core.model.load import LoadedModel
from kvactors.core.schedule.request import Request

__all__ = ["Beginning", "PrefixSharing"]

logger = logging.getLogger(__name__)

# What is remembered at most: those that are hot are, with few exceptions, among the last.
MOST_BEGINNINGS = 32_768
MOST_DONORS = 64
# Of those that begin alike, how many are asked for how much.
LOOKED_AT = 8
# Tokens for which it is worth to go on with another's, which may have to be cut.
WORTH_A_CUT = 32
# Turns of nobody, whose KV others may begin with until memory is wanted.
MOST_LENT = 8

Beginning = tuple[str, str, int]
"""Whose tokens they are, their hash, and in which form their KV is."""


class PrefixSharing:
    """Who has which beginning in memory. `shared_tokens`: taken from another's."""

    def __init__(self, loaded: LoadedModel, hot: HotCaches) -> None:
        self.shared_tokens = 0
        self._hot = hot
        self._spec = loaded.spec
        # Where sums depend on where chunks end, and where states are kept there alone, others are
        # given what a chunk ended with: a system prompt.
        self._by_block = not (loaded.fixed_chunks or loaded.spec.checkpointed)
        # Those that were offered last at the end.
        self._donors: OrderedDict[Beginning, dict[str, None]] = OrderedDict()
        self._lent = dict[str, None]()
        # No agent has such a name.
        self._key = f"(lent {secrets.token_hex(8)})"

    def __len__(self) -> int:
        """How many agents it remembers, once for each beginning."""
        return sum(map(len, self._donors.values()))

    def beginnings(self, request: Request) -> Iterator[tuple[int, Beginning]]:
        """Of a turn: how many tokens it has, and which it is; long ones last, but for the system
        prompt, which comes first."""
        if request.tenant is None:
            return
        form = request.form.index
        if request.shared:
            yield request.shared, (request.tenant, request.prompt_hash, form)
        if self._by_block:
            ends = range(BLOCK_TOKENS, len(request.tokens) + 1, BLOCK_TOKENS)
            if len(request.blocks) < len(ends):
                request.blocks = list(prefix_hashes(request.tokens, ends))
            for end, block in zip(ends, request.blocks, strict=False):
                yield end, (request.tenant, block, form)

    def offer(self, request: Request) -> None:
        """Let others begin with what is in memory now of this turn."""
        cache = self._hot.get(request.agent_id)
        end = cache.end if cache else 0
        known = [found for found in self.beginnings(request) if found[0] <= end]
        owner = self._lend(request.agent_id) if known and request.lends else request.agent_id
        # Of those that are forgotten first the long ones are: without a short one none is found.
        for _, beginning in reversed(known):
            donors = self._donors.setdefault(beginning, {})
            donors.pop(owner, None)
            donors[owner] = None
            self._donors.move_to_end(beginning)
            if len(donors) > MOST_DONORS:
                del donors[next(iter(donors))]
        while len(self._donors) > MOST_BEGINNINGS:
            self._donors.popitem(last=False)

    def _lend(self, agent_id: str) -> str:
        """Let somebody else have what an agent has, who is forgotten now."""
        lender = f"{agent_id} {self._key}"
        self._lent.pop(lender, None)
        self._lent[lender] = None
        self._hot.drop(lender)
        self._hot.fork(agent_id, lender).lent = True
        if len(self._lent) > MOST_LENT:
            oldest = next(iter(self._lent))
            del self._lent[oldest]
            self._hot.drop(oldest)
        return lender

    def donor(self, request: Request, least: int = 0) -> tuple[str, int]:
        """An agent whose hot cache has most of a turn's beginning, in the form of the `request`,
        and how many tokens of it, `least` or more; of equal ones the last, whose pieces may end
        there."""
        for tokens, beginning in self._longest_first(request, self._donors):
            if tokens < least:
                break
            donors = self._donors[beginning]
            found = ("", 0)
            for agent_id in list(donors)[: -LOOKED_AT - 1 : -1]:
                common = self._common(self._hot.get(agent_id), request)
                if common < tokens:
                    del donors[agent_id]
                elif common > found[1] and agent_id != request.agent_id:
                    found = agent_id, common
            if not donors:
                del self._donors[beginning]
            if found[1]:
                return found
        return "", 0

    def prefilled_by(self, request: Request) -> dict[Beginning, Request]:
        """What a turn will prefill, or restore, that others may begin with, too."""
        if not request.remaining:
            return {}
        return {found: request for _, found in self.beginnings(request)}

    def awaits(self, request: Request, prefilled: Mapping[Beginning, Request]) -> bool:
        """Whether a turn is to wait for one of those by whom its beginning is just `prefilled`,
        since nobody has as much of it yet: that is offered when it is there. For one that is less
        urgent it waits for a system prompt alone."""
        urgent = (
            (tokens, prefilled[beginning])
            for tokens, beginning in self._longest_first(request, prefilled)
            if tokens == request.shared or prefilled[beginning].priority >= request.priority
        )
        known, other = next(urgent, (0, request))
        if not known:
            return False
        tokens = min(known, request.target)
        if self._by_block:
            # Behind its last whole block they may have more in common.
            rest = slice(known, min(known + BLOCK_TOKENS, other.target, request.target))
            tokens += common_prefix(other.tokens[rest], request.tokens[rest])
        own = self._common(self._hot.get(request.agent_id), request)
        same = self._hot.common(other.agent_id, request.agent_id)
        if tokens > other.target or not _is_better(tokens, own, same, request):
            return False
        if self.donor(request, known)[1] >= tokens:
            return False
        if tokens > other.offered:
            # More of it is another's beginning than was known.
            other.awaited = tokens
        elif other.cached >= other.offered:
            # There was no room to keep it.
            return False
        return other.offered - max(other.cached, same) <= 2 * (tokens - own)

    def prepare(self, request: Request, asks_for_more: Callable[[Request], bool]) -> None:
        """Cut the agent's cache to what the turn has in common with it; where another's has more
        of the turn, begin with that, unless its own goes on behind that, which `asks_for_more`
        says: then the store is asked first."""
        agent_id = request.agent_id
        cache = self._hot.get(agent_id)
        had = cache.end if cache else 0
        common = self._hot.keep_common(agent_id, self._reusable(request), request.form.spec)
        if common < had:
            logger.debug("%r goes back from token %d to %d", agent_id, had, common)
        if not _is_better(len(request.tokens), common, common, request) or asks_for_more(request):
            return
        donor, tokens = self.donor(request)
        end = len(request.tokens) if self._by_block else request.shared
        same = self._hot.common(donor, agent_id)
        # The first tokens of all conversations may be the same.
        if _is_better(min(tokens, end), common, same, request):
            cache = self._hot.share(donor, agent_id, self._reusable(request)[:end])
            self.shared_tokens += cache.end - same

    def _longest_first(
        self, request: Request, known: Mapping[Beginning, object]
    ) -> list[tuple[int, Beginning]]:
        """The beginnings of a turn that are `known`, the longest one first."""
        found = list[tuple[int, Beginning]]()
        for tokens, beginning in self.beginnings(request):
            if beginning in known:
                found.append((tokens, beginning))
            elif tokens != request.shared:
                break
        # A system prompt of whole blocks is one of them.
        return sorted(set(found), reverse=True)

    def _common(self, cache: HotCache | None, request: Request) -> int:
        """How many tokens of a turn a cache has that the turn can begin with."""
        if cache is None or not cache.in_form(request.form.spec):
            return 0
        return cache.reusable(common_prefix(cache.tokens, request.tokens))

    def _reusable(self, request: Request) -> list[int]:
        """The tokens that the turn may begin with. The last one is fed by the first step, and
        states that have taken it cannot give it back."""
        if not self._spec.checkpointed:
            return request.tokens
        return request.tokens[: request.target]


def _is_better(tokens: int, own: int, same: int, request: Request) -> bool:
    """Whether so many `tokens` of another are better for a turn than its agent's `own`: all of the
    system prompt, or more than it lets go of, which may be stored already. That are whole blocks
    behind the first, `same`, which the two hold once: those stay, and others are written anew."""
    least = WORTH_A_CUT if same else BLOCK_TOKENS
    return own < request.shared <= tokens or tokens - own >= max(least, block_floor(own) - same)
