"""A server's account of itself without what nobody else may know.

SGLang's `/server_info` holds its arguments two times and more, keys included, and its command line.
Some arguments are JSON within a text, and some are addresses.
"""

import json
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

_SECRETS: Final = ("password", "passphrase", "secret", "credential", "bearer", "authorization")
_SECRET_ENDS: Final = (
    *("_key", "_keys", "_token"),  # not `_tokens`, which SGLang counts under many names
    *(f"_{each}{end}" for each in _SECRETS for end in ("", "s")),
    *("apikey", "apikeys"),
)
_SECRET_NAMES: Final = frozenset(
    {"key", "token", *_SECRETS, "secrets", "passwords", "credentials", "launch_command"}
)
_NO_SECRET_ENDS: Final = ("_first_token", "_per_token")
"""Of times and counts, as SGLang has them: `bucket_time_to_first_token`."""
_WORD_BEGINS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
"""Within camelCase."""
_REMOVED: Final = "[removed]"
_LEAST: Final = 8
"""Characters; a shorter text (`</s>` is a token, too) would be found in what is no secret."""
_FLAG: Final = re.compile(
    r"""(?<![\w-])--([A-Za-z][\w-]*)(=|\s+|["'],?\s+)((?!--)(?:"[^"]*"|'[^']*'|\S+))"""
)
"""An argument and its value, within a text: a command line, or a list of arguments as it prints."""
_USER: Final = re.compile(r"://[^/?#\s]*@")
"""Who is told to an address, and with which password."""


def redacted(page: dict[str, object], others: Iterable[object] = ()) -> dict[str, object]:
    """`page` without secrets, at any depth: in lists, and in texts that are JSON, too.

    What is called a key, a password, a token or a secret is left out, however its name is spelt
    (`x-api-key`, `apiKey`); so is the argument of a flag that is called so, and the user of an
    address. A text elsewhere that holds the value of one is replaced: a header, say; also of one
    that stands on the pages `others`. Raises RecursionError where a page is nested too deeply.
    """
    secrets = frozenset(each for one in (page, *others) for each in _secrets(one, secret=False))
    return _clean_object(page, secrets)


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
    elif isinstance(value, str):
        if secret and len(value) >= _LEAST:
            yield value
        yield from _secrets_within(value, secret=secret)


def _secrets_within(text: str, *, secret: bool) -> Iterator[str]:
    try:
        yield from _secrets(_json(text), secret=secret)
    except RecursionError:  # then all of it is left out
        return


def _json(text: str) -> object:
    """The object or the list that a text is; None where it is none.

    Raises RecursionError where it is nested too deeply.
    """
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        value: object = json.loads(text)
    except ValueError:
        return None
    return value


def _clean(value: object, secrets: frozenset[str]) -> object:
    if isinstance(value, dict):
        return _clean_object(value, secrets)
    if isinstance(value, list):
        return [
            _REMOVED if _is_argument(value, number) else _clean(_without_argument(inner), secrets)
            for number, inner in enumerate(value)
        ]
    return _clean_text(value, secrets) if isinstance(value, str) else value


def _clean_object(page: dict[str, object], secrets: frozenset[str]) -> dict[str, object]:
    return {
        name: _clean(value, secrets)
        for name, value in page.items()
        if not (_is_secret(name) or _holds(name, secrets))
    }


def _holds(text: str, secrets: frozenset[str]) -> bool:
    return any(hidden in text for hidden in secrets)


def _is_argument(values: list[object], number: int) -> bool:
    """Whether it is the value of a flag that stands before it, and a secret by that."""
    flag, value = values[number - 1] if number else None, values[number]
    if not isinstance(flag, str) or not flag.startswith("-"):
        return False
    if isinstance(value, str) and value.startswith("--"):
        return False  # the next flag: this one has no value
    return _is_secret(flag.lstrip("-"))


def _without_argument(value: object) -> object:
    """A flag alone, where it carries its value, which is a secret and may have spaces."""
    if isinstance(value, str) and value.startswith("-"):
        flag, carries, _ = value.partition("=")
        if carries and _is_secret(flag.lstrip("-")):
            return f"{flag}={_REMOVED}"
    return value


def _clean_text(text: str, secrets: frozenset[str]) -> str:
    try:
        inner = _json(text)
        left = _clean(inner, secrets)
        unchanged = left == inner
    except RecursionError:
        return _REMOVED
    if not unchanged:
        text = json.dumps(left, ensure_ascii=False)
    if _holds(text, secrets):
        return _REMOVED
    return text if inner is not None else _FLAG.sub(_shown, _USER.sub(f"://{_REMOVED}@", text))


def _shown(argument: re.Match[str]) -> str:
    name, between, value = argument.groups()
    return f"--{name}{between}{_REMOVED if _is_secret(name) else value}"
