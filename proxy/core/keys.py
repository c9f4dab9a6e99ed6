"""Client keys: who is this, without telling by the time it takes how near a guess was."""

from collections.abc import Mapping, Sequence
from hashlib import sha256

Headers = Sequence[tuple[bytes, bytes]]

KEY_HEADERS = frozenset({b"authorization", b"x-api-key", b"api-key"})
"""Where clients put their keys: OpenAI's, Anthropic's, Azure's."""


def presented(headers: Headers, first: Mapping[bytes, bytes] | None = None) -> bytes | None:
    """The first key that `headers` carry, None without one.

    With `first`, the first value of each lower-case name, one that stands where OpenAI's clients
    put it is found without a search.
    """
    if first is not None and b"x-api-key" not in first and b"api-key" not in first:
        key = _bearer(first.get(b"authorization", b""))
        if key is not None:
            return key
    for name, value in headers:
        lowered = name.lower()
        if lowered == b"authorization":
            key = _bearer(value)
            if key is not None:
                return key
        elif lowered in KEY_HEADERS and value.strip():
            return value.strip()
    return None


def _bearer(value: bytes) -> bytes | None:
    scheme, _, token = value.strip().partition(b" ")
    return token.strip() or None if scheme.lower() == b"bearer" else None


class Keyring:
    """The configured client keys, kept as digests; empty means that no key is asked for."""

    __slots__ = ("_names",)

    def __init__(self, keys: Mapping[str, str]) -> None:
        self._names = {sha256(key.encode()).digest(): name for name, key in keys.items()}

    def __bool__(self) -> bool:
        return bool(self._names)

    def name_of(self, key: bytes | None) -> str | None:
        """The name under which `key` is configured, None for a wrong one.

        A key is known by its digest. The time that a look-up takes may tell how near a guess's
        digest was to a configured one, and that tells nothing about the key; it takes as long for a
        thousand keys as for one.
        """
        return None if key is None else self._names.get(sha256(key).digest())
