"""Fixtures of the tests of stores."""

import pytest
from copies import KEY


@pytest.fixture(params=[None, KEY], ids=["plain", "encrypted"])
def key(request: pytest.FixtureRequest) -> bytes | None:
    found: bytes | None = request.param
    return found
