"""What two agents have in common is held once: the same system prompt. GPU thread only."""

import logging
from collections import OrderedDict
from collections.abc import Callable

from kvactors.core.engine.hot_cache import HotCaches
from kvactors.core.model.load import LoadedModel
from kvactors.core.schedule.request import Request

__all__ = ["PrefixSharing"]

logger = logging.getLogger(__name__)

# What is remembered at most: those that are hot are, with few exceptions, among the last.
MOST_PROMPTS = 4096
MOST_DONORS = 64


class PrefixSharing:
    """Who has which system prompt in memory. `shared_tokens`: taken from another's beginning."""

    def __init__(self, loaded: LoadedModel, hot: HotCaches) -> None:
        self.shared_tokens = 0
        self._loaded = loaded
        self._hot = hot
        # By the prompt's hash and form, those that were offered last at the end.
        self._donors: OrderedDict[tuple[str, int], dict[str, None]] = OrderedDict()

    def __len__(self) -> int:
        """How many agents it remembers, once for each system prompt."""
        return sum(map(len, self._donors.values()))

    def offer(self, request: Request) -> None:
        """Let others begin with this turn's system prompt, whose KV is in memory now."""
        if not request.shared:
            return
        key = request.prompt_hash, request.form.index
        donors = self._donors.setdefault(key, {})
        donors.pop(request.agent_id, None)
        donors[request.agent_id] = None
        self._donors.move_to_end(key)
        if len(donors) > MOST_DONORS:
            del donors[next(iter(donors))]
        if len(self._donors) > MOST_PROMPTS:
            self._donors.popitem(last=False)

    def donor(self, request: Request) -> str | None:
        """An agent whose hot cache has this turn's system prompt, in its form."""
        key = request.prompt_hash, request.form.index
        if not request.shared or key not in self._donors:
            return None
        donors, beginning = self._donors[key], request.tokens[: request.shared]
        for agent_id in list(donors):
            cache = self._hot.get(agent_id)
            fits = cache is not None and cache.in_form(request.form.spec)
            if cache is not None and fits and cache.tokens[: request.shared] == beginning:
                if not self._loaded.spec.checkpointed:
                    return agent_id
                if cache.reusable(request.shared) == request.shared:
                    return agent_id
            del donors[agent_id]
        del self._donors[key]
        return None

    def has_beginning(self, request: Request) -> bool:
        """Whether the agent's own hot cache has this turn's system prompt."""
        cache, shared = self._hot.get(request.agent_id), request.shared
        return cache is not None and cache.tokens[:shared] == request.tokens[:shared]

    def prepare(self, request: Request, asks_for_more: Callable[[Request], bool]) -> None:
        """Cut the agent's cache to what the turn has in common with it; where that is less than the
        system prompt, begin with that of an agent with the same one, unless its own goes on
        behind that, which `asks_for_more` says: then the store is asked first."""
        agent_id = request.agent_id
        cache = self._hot.get(agent_id)
        had = cache.end if cache else 0
        common = self._hot.keep_common(agent_id, self._reusable(request), request.form.spec)
        if common < had:
            logger.debug("%r goes back from token %d to %d", agent_id, had, common)
        more = common < request.shared and not asks_for_more(request)
        donor = self.donor(request) if more else None
        if donor is not None:
            # The first tokens of all conversations may be the same.
            self._hot.drop(agent_id)
            cache = self._hot.share(donor, agent_id, request.tokens[: request.shared])
            self.shared_tokens += cache.end

    def _reusable(self, request: Request) -> list[int]:
        """The tokens that the turn may begin with. The last one is fed by the first step, and
        states that have taken it cannot give it back."""
        if not self._loaded.spec.checkpointed:
            return request.tokens
        return request.tokens[: request.target]
