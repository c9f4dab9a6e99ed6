"""A server's account of itself without what nobody else may know.

SGLang's `/server_info` holds its arguments two times and more, keys included, and its command line;
some of its arguments are JSON in a text, and some are URLs.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Final

_SECRET_ENDS: Final = (
    *("_key", "_password", "_passphrase", "_token", "_secret", "_authorization"),
    *("_credential", "_credentials", "_bearer"),
    *("_keys", "_passwords", "_secrets"),  # not `_tokens`, which SGLang counts under many names
    *("apikey", "apikeys"),
)
_SECRET_NAMES: Final = frozenset(
    {
        *("key", "password", "passphrase", "token", "secret", "authorization"),
        *("credential", "credentials", "bearer", "launch_command"),
    }
)
_NO_SECRET_ENDS: Final = ("_first_token", "_per_token")
"""Of times and counts, as SGLang has them: `bucket_time_to_first_token`."""
_WORD_BEGINS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
"""Within camelCase."""
_REMOVED: Final = "[removed]"
_LEAST: Final = 8
"""Characters; a shorter text (`</s>` is a token, too) would be found in what is no secret."""

_NAME: Final = re.compile(r"[A-Za-z][\w-]*")
_OPTION: Final = re.compile(r"(--([A-Za-z][\w-]*)(?:=|\s+))(\"[^\"]*\"|'[^']*'|\S+)")
"""An option of a command line with its value, in one text."""
_USERINFO: Final = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]*://)[^\s/?#@]*@")
"""What stands before the host of a URL."""


def redacted(page: dict[str, object], *also: Mapping[str, object]) -> dict[str, object]:
    """`page` without secrets, at any depth, in lists and in JSON within a text, too.

    What is called a key, a password, a token or a secret is left out, however its name is spelt
    (`x-api-key`, `apiKey`), and so is the value of such an option in a command line, and what a URL
    has before its host. A text elsewhere that holds the value of one, of `page` or of `also`, is
    replaced: a header, say. Raises RecursionError where a page is nested too deeply.
    """
    secrets = frozenset(_secrets((page, *also)))
    return {name: _clean(value, secrets) for name, value in page.items() if not _is_secret(name)}


@lru_cache(maxsize=4096)  # a page has some 600 names, and the same ones each time
def _is_secret(name: str) -> bool:
    words = _WORD_BEGINS.sub("_", name).replace("-", "_").lower()
    if words.endswith(_NO_SECRET_ENDS):
        return False
    return words in _SECRET_NAMES or words.endswith(_SECRET_ENDS)


def _secrets(pages: Iterable[object]) -> Iterator[str]:
    """The texts that stand where a secret is called one, if they are long enough to be known."""
    return (
        each for page in pages for each in _called_secret(page, secret=False) if len(each) >= _LEAST
    )


def _called_secret(value: object, *, secret: bool) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _called_secret(inner, secret=secret or _is_secret(name))
    elif isinstance(value, list):
        for inner in value:
            yield from _called_secret(inner, secret=secret)
        for option, inner in pairwise(value):
            if isinstance(inner, str) and _is_secret_option(option):
                yield inner
    elif isinstance(value, str):
        yield from _in_text(value, secret=secret)


def _in_text(text: str, *, secret: bool) -> Iterator[str]:
    if secret:
        yield text
    inner = _within(text)
    if inner is not None:
        yield from _called_secret(inner, secret=secret)
    for option in _OPTION.finditer(text):
        if _is_secret(option[2]):
            yield option[3].strip("\"'")


def _is_secret_option(value: object) -> bool:
    """Whether this element of a command line says that the next one is a secret."""
    return isinstance(value, str) and value.startswith("--") and _is_secret(value[2:])


def _within(text: str) -> object:
    """What a text of JSON holds; None where it is none, or nothing that names anything."""
    if not text.startswith(("{", "[")):
        return None
    try:
        inner: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return inner


def _clean(value: object, secrets: frozenset[str]) -> object:
    if isinstance(value, dict):
        return {
            name: _clean(inner, secrets) for name, inner in value.items() if not _is_secret(name)
        }
    if isinstance(value, list):
        told = [None, *value]
        return [
            _REMOVED if _is_secret_option(before) else _clean(inner, secrets)
            for before, inner in pairwise(told)
        ]
    return _clean_text(value, secrets) if isinstance(value, str) else value


def _clean_text(text: str, secrets: frozenset[str]) -> str:
    inner = _within(text)
    if inner is not None:
        cleaned = _clean(inner, secrets)
        return text if cleaned == inner else json.dumps(cleaned)
    if any(hidden in text for hidden in secrets):
        return _REMOVED
    if text.startswith("{") and any(map(_is_secret, _NAME.findall(text))):
        return _REMOVED  # what cannot be read may be Python's way to write the same
    without = _OPTION.sub(lambda o: f"{o[1]}{_REMOVED}" if _is_secret(o[2]) else o[0], text)
    return _USERINFO.sub(r"\1", without)
