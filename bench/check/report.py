"""The report of a check: text to paste into an issue, or the same as JSON."""

import json
import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from kvactors.bench.check.finding import Finding
from kvactors.bench.report import machine

__all__ = ["report"]

WIDTH = 34


def report(findings: Iterable[Finding], *, as_json: bool) -> bool:
    """Print `findings` as they come, or all of them as one JSON object; whether none is violated.

    What kvactors warns of meanwhile is part of it.
    """
    begin, found = time.perf_counter(), list[Finding]()
    with _warnings() as warnings:
        if not as_json:
            _print_machine()
        for finding in findings:
            found.append(finding)
            if not as_json:
                _print_line(finding)
    seconds = time.perf_counter() - begin
    violated = [finding.name for finding in found if finding.answer.verdict == "violated"]
    if as_json:
        facts: dict[str, Any] = {"seconds": round(seconds, 1), "violated": violated}
        checks = [finding.as_json() for finding in found]
        print(json.dumps({**machine(), **facts, "warnings": warnings, "checks": checks}, indent=1))
    else:
        _print_end(found, warnings, seconds)
    return not violated


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """The texts of what is logged at WARNING and above, which is not printed elsewhere."""
    texts: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            texts.append(record.getMessage())

    logger, ear = logging.getLogger("kvactors"), Ear(logging.WARNING)
    logger.addHandler(ear)
    try:
        yield texts
    finally:
        logger.removeHandler(ear)


def _print_machine() -> None:
    for name, value in machine().items():
        print(f"{name:{WIDTH}} {value}")
    print(flush=True)


def _print_line(finding: Finding) -> None:
    answer = finding.answer
    line = f"{finding.name:{WIDTH}} {answer.verdict:8} {finding.seconds:5.1f} s  {answer.detail}"
    print(line, flush=True)


def _print_end(found: list[Finding], warnings: list[str], seconds: float) -> None:
    for text in dict.fromkeys(warnings):
        print(f"warning: {text}")
    counts = Counter(finding.answer.verdict for finding in found)
    said = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
    print(f"\n{said}; {seconds:.0f} s", flush=True)
