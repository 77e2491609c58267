"""What a server counts, for Prometheus. Labels are few and never what a client chose."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from kvactors.actors.frontends.server.exchange.events import Ended, Opened

__all__ = ["Counts"]

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)


class Counts:
    """Counters of one server, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._turns = Counter(
            "kvactors_turns", "Turns, by how their conversation was found.", ["how"],
            registry=self.registry,
        )  # fmt: skip
        self._rules = Counter(
            "kvactors_rules_kept", "Turns in which a rule let the ledger's text stand.", ["rule"],
            registry=self.registry,
        )  # fmt: skip
        self._misses = Counter(
            "kvactors_misses", "Turns whose conversation left what is known.",
            registry=self.registry,
        )  # fmt: skip
        self._tokens = Counter(
            "kvactors_tokens", "Tokens of prompts and answers.", ["kind"], registry=self.registry
        )
        self._failed = Counter(
            "kvactors_failures", "Requests that were answered with an error, by status: not those "
            "that were refused at the door, nor streams that failed behind their headers.",
            ["status"], registry=self.registry,
        )  # fmt: skip
        self._first = Histogram(
            "kvactors_first_token_seconds", "From the request to the first token.",
            buckets=_SECONDS, registry=self.registry,
        )  # fmt: skip
        self.attached = Counter(
            "kvactors_attached", "Requests that got the answer of one in flight.",
            registry=self.registry,
        )  # fmt: skip
        self.open = Gauge("kvactors_open_turns", "Turns that run or wait.", registry=self.registry)

    def taken(self, opened: Opened) -> None:
        """A turn was taken."""
        self._turns.labels(opened.reuse.how).inc()
        for rule in opened.reuse.kept:
            self._rules.labels(rule).inc()
        if opened.reuse.miss:
            self._misses.inc()

    def ended(self, ended: Ended, first_token: float) -> None:
        """A turn ended; its first token came after so many seconds."""
        usage = ended.usage
        self._tokens.labels("cached").inc(usage.cached)
        self._tokens.labels("computed").inc(usage.prompt - usage.cached)
        self._tokens.labels("answered").inc(usage.answer)
        self._first.observe(first_token)

    def failed(self, status: int) -> None:
        """A request was answered with the status of an error."""
        self._failed.labels(str(status)).inc()
