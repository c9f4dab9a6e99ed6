"""Client keys: where they are looked for, and whose they are."""

import pytest

from proxy.core.http import first_values
from proxy.core.keys import KEY_HEADERS, Keyring, presented


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ([], None),
        ([(b"accept", b"sk-1")], None),
        ([(b"authorization", b"Bearer sk-1")], b"sk-1"),
        ([(b"Authorization", b"bearer  sk-1 ")], b"sk-1"),
        ([(b"AUTHORIZATION", b" BEARER sk 1")], b"sk 1"),
        ([(b"authorization", b"Bearer ")], None),
        ([(b"authorization", b"Bearer")], None),
        ([(b"authorization", b"Basic c2s6MQ==")], None),
        ([(b"authorization", b"sk-1")], None),
        ([(b"x-api-key", b" sk-2 ")], b"sk-2"),
        ([(b"Api-Key", b"sk-3")], b"sk-3"),
        ([(b"x-api-key", b"  ")], None),
        ([(b"authorization", b"Basic x"), (b"x-api-key", b""), (b"api-key", b"sk-3")], b"sk-3"),
        ([(b"x-api-key", b"first"), (b"authorization", b"Bearer second")], b"first"),
        ([(b"api-key", b"first"), (b"authorization", b"Bearer second")], b"first"),
        ([(b"authorization", b"Bearer first"), (b"api-key", b"second")], b"first"),
        ([(b"authorization", b"Basic x"), (b"Authorization", b"Bearer sk-1")], b"sk-1"),
    ],
)
def test_the_key_that_is_presented(headers: list[tuple[bytes, bytes]], key: bytes | None) -> None:
    """OpenAI's, Anthropic's and Azure's way to send one; the first that is there counts."""
    assert presented(headers) == key
    assert presented(headers, first_values(headers)) == key


def test_where_keys_travel_is_known() -> None:
    """What is looked at for keys is what is kept from engines when keys are configured."""
    assert frozenset({b"authorization", b"x-api-key", b"api-key"}) == KEY_HEADERS


def test_a_keyring_without_keys_asks_for_none() -> None:
    """No key configured means open, and is told from one configured."""
    assert not Keyring({})
    assert Keyring({"team": "sk-1"})


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (b"sk-1", "first"),
        (b"sk-2", "second"),
        ("schlüssel".encode(), "third"),
        (b"sk-", None),
        (b"sk-1 ", None),
        (b"SK-1", None),
        (b"first", None),
        (b"\xff\x00", None),
        (b"", None),
        (None, None),
    ],
)
def test_whose_a_key_is(key: bytes | None, name: str | None) -> None:
    """The name is told for a key that is right to the last byte, nothing for any other."""
    ring = Keyring({"first": "sk-1", "second": "sk-2", "third": "schlüssel"})

    assert ring.name_of(key) == name


def test_a_keyring_holds_no_key() -> None:
    """Not one byte of a key is in it, so none can leak from a dump or a traceback."""
    ring = Keyring({"team": "sk-very-secret"})

    held = {part: getattr(ring, part) for part in dir(ring) if not part.startswith("__")}
    assert "_names" in held
    assert "sk-very-secret" not in repr(held)
