"""A server's account of itself without what nobody else may know.

SGLang's `/server_info` holds its arguments two times and more, keys included, and its command line.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

_SECRET_ENDS: Final = (
    *("_key", "_password", "_token", "_secret", "_authorization"),
    *("_keys", "_passwords", "_secrets"),  # not `_tokens`, which SGLang counts under many names
    *("apikey", "apikeys"),
)
_SECRET_NAMES: Final = frozenset(
    {"key", "password", "token", "secret", "authorization", "launch_command"}
)
_NO_SECRET_ENDS: Final = ("_first_token", "_per_token")
"""Of times and counts, as SGLang has them: `bucket_time_to_first_token`."""
_WORD_BEGINS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
"""Within camelCase."""
_REMOVED: Final = "[removed]"
_LEAST: Final = 8
"""Characters; a shorter text (`</s>` is a token, too) would be found in what is no secret."""


def redacted(page: dict[str, object]) -> dict[str, object]:
    """`page` without secrets, at any depth, in lists too.

    What is called a key, a password, a token or a secret is left out, however its name is spelt
    (`x-api-key`, `apiKey`). A text elsewhere that holds the value
    of one is replaced: a command line as a list, a header. Raises RecursionError where `page` is
    nested too deeply.
    """
    secrets = frozenset(_secrets(page, secret=False))
    return {name: _clean(value, secrets) for name, value in page.items() if not _is_secret(name)}


@lru_cache(maxsize=4096)  # a page has some 600 names, and the same ones each time
def _is_secret(name: str) -> bool:
    words = _WORD_BEGINS.sub("_", name).replace("-", "_").lower()
    if words.endswith(_NO_SECRET_ENDS):
        return False
    return words in _SECRET_NAMES or words.endswith(_SECRET_ENDS)


def _secrets(value: object, *, secret: bool) -> Iterator[str]:
    """The texts that stand where a secret is called one."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _secrets(inner, secret=secret or _is_secret(name))
    elif isinstance(value, list):
        for inner in value:
            yield from _secrets(inner, secret=secret)
    elif isinstance(value, str) and secret and len(value) >= _LEAST:
        yield value


def _clean(value: object, secrets: frozenset[str]) -> object:
    if isinstance(value, dict):
        return {
            name: _clean(inner, secrets) for name, inner in value.items() if not _is_secret(name)
        }
    if isinstance(value, list):
        return [_clean(inner, secrets) for inner in value]
    if isinstance(value, str) and any(hidden in value for hidden in secrets):
        return _REMOVED
    return value
