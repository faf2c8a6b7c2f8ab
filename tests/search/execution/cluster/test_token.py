"""Keep the token of a local Ray from the other users of the machine."""

import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from searchlight.search.execution.cluster.connection import _create_private_token


@pytest.fixture
def token(tmp_path, monkeypatch):
    for name in ("TOKEN", "TOKEN_PATH", "MODE"):
        monkeypatch.delenv(f"RAY_AUTH_{name}", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / ".ray" / "auth_token"


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_new_token_is_readable_by_its_user_alone(token):
    _create_private_token()
    assert (mode_of(token), mode_of(token.parent)) == (0o600, 0o700)
    assert len(token.read_text()) == 64
    before = token.read_text()
    _create_private_token()
    assert token.read_text() == before
    assert [*token.parent.iterdir()] == [token]


def test_searches_that_start_together_share_one_token(token):
    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(_create_private_token) for _ in range(8)]:
            done.result()
    assert (len(token.read_text()), [*token.parent.iterdir()]) == (64, [token])


def test_token_that_ray_created_becomes_private(token):
    token.parent.mkdir()
    token.write_text("of-an-earlier-ray")
    token.chmod(0o644)
    _create_private_token()
    assert (mode_of(token), token.read_text()) == (0o600, "of-an-earlier-ray")


@pytest.mark.parametrize(("name", "value"), [("TOKEN", "x"), ("TOKEN_PATH", "/elsewhere"), ("MODE", "disabled")])
def test_no_token_is_created_where_none_is_used(token, monkeypatch, name, value):
    monkeypatch.setenv(f"RAY_AUTH_{name}", value)
    _create_private_token()
    assert not token.exists()
