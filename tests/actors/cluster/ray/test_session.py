"""How this process comes to a cluster, and what keeps it from one."""

import socket
from pathlib import Path

import pytest
from ray._raylet import AuthenticationMode, get_authentication_mode

from kvactors.actors.cluster.ray.errors import ClusterUnreachable, RayletFailed
from kvactors.actors.cluster.ray.raylet import Raylet, Started
from kvactors.actors.cluster.ray.session import check_reachable
from kvactors.actors.cluster.ray.token import require_token
from kvactors.core.errors import InvalidConfig, InvalidInput


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without a token."""
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    "address",
    ["", "here", "here:", "here:there", ":", "here:0", "here:65536", "here:" + "9" * 5000],
)
def test_an_address_has_a_host_and_a_port(address: str) -> None:
    with pytest.raises(InvalidInput, match='"host:port"'):
        check_reachable(address)


@pytest.mark.parametrize("host", ["here..there", "x" * 300, "\ud800"])
def test_what_no_host_is_called_is_refused(host: str) -> None:
    with pytest.raises(InvalidInput, match="no host has the name"):
        check_reachable(f"{host}:6379")


def test_where_nobody_listens_it_is_said_at_once() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with pytest.raises(ClusterUnreachable, match="kvactors node --head"):
        check_reachable(address)


def test_a_token_is_made_once_and_for_this_user_alone(home: Path) -> None:
    with pytest.raises(InvalidConfig, match="there is no token"):
        require_token(make=False)

    assert require_token(make=True)

    file = home / ".ray" / "auth_token"
    made = file.read_text(encoding="utf-8")
    assert len(made) == 64
    assert file.stat().st_mode & 0o777 == 0o600
    assert not require_token(make=True)
    assert file.read_text(encoding="utf-8") == made


def test_a_cluster_without_a_token_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    require_token(make=True)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")

    with pytest.raises(InvalidConfig, match="RAY_AUTH_MODE is 'disabled'"):
        require_token(make=True)

    # That of a cluster that this process is in already.
    assert get_authentication_mode() == AuthenticationMode.TOKEN


def test_why_ray_did_not_start_is_said(tmp_path: Path) -> None:
    with pytest.raises(RayletFailed, match=r"(?s)Ray did not start: .+Error"):
        Raylet(Started("one", "127.0.0.1", tmp_path / "ray", port=-1))
