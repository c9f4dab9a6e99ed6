"""Client keys: who is this, without telling by the time it takes how near a guess was."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from hmac import compare_digest

Headers = Sequence[tuple[bytes, bytes]]

KEY_HEADERS = frozenset({b"authorization", b"x-api-key", b"api-key"})
"""Where clients put their keys: OpenAI's, Anthropic's, Azure's."""


def presented(headers: Headers) -> bytes | None:
    """The first key that `headers` carry, None without one."""
    for name, value in headers:
        lowered = name.lower()
        if lowered == b"authorization":
            scheme, _, token = value.strip().partition(b" ")
            if scheme.lower() == b"bearer" and token.strip():
                return token.strip()
        elif lowered in KEY_HEADERS and value.strip():
            return value.strip()
    return None


class Keyring:
    """The configured client keys; empty means that no key is asked for."""

    __slots__ = ("_keys",)

    def __init__(self, keys: Mapping[str, str]) -> None:
        self._keys = {
            sha256(key.encode()).digest(): (key.encode(), name) for name, key in keys.items()
        }

    def __bool__(self) -> bool:
        return bool(self._keys)

    def name_of(self, key: bytes | None) -> str | None:
        """The name under which `key` is configured, None for a wrong one.

        It is found by its digest, which takes as long for ten keys as for a thousand and tells
        nothing of how near a guess was, and then compared whole in constant time.
        """
        if key is None:
            return None
        known, name = self._keys.get(sha256(key).digest(), (b"", None))
        return name if compare_digest(known, key) else None
