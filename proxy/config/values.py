"""What a value may be: the types that sections are made of.

Checks raise ValueError with a part of a sentence, "must be ..."; what could hold a secret is never
repeated in one.
"""

import ssl
import tomllib
from collections.abc import Mapping
from pathlib import Path
from re import compile as pattern
from typing import Annotated, Final, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    SecretStr,
)

from proxy.config.addresses import Url, host, origin, url
from proxy.config.forms import Kind, form, shown, size_from_text
from proxy.core.words import Control, Topology

_MOST: Final = 2**31 - 1
"""More than any machine can hold of anything, and exact in every number format downstream."""
_YEAR: Final = 365 * 86_400.0
"""Seconds; event loops and sockets overflow on absurd waits."""
_LEAST_SECONDS: Final = 0.01
"""Less is a slip: probes every 100 ns would keep a core busy, and no deadline that short is met."""
_MOST_BYTES: Final = 2**40

_MOST_ACCEPTED: Final = 1000
"""Tokens of a verify round; engines verify some dozens."""


def _cap(value: object) -> int | Literal["auto"]:
    if value == "auto":
        return "auto"
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST:
        return value
    raise ValueError(f'must be "auto" or a whole number from 0 to {_MOST}, is {shown(value)}')


def _acceptance(value: object) -> float | Literal["auto"]:
    if value == "auto":
        return "auto"
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and 0.0 <= float(str(value)) <= _MOST_ACCEPTED:
        return float(str(value))
    raise ValueError(f'must be "auto" or a number from 0 to {_MOST_ACCEPTED}, is {shown(value)}')


def _file_name(text: str) -> str:
    if "\0" in text:
        raise ValueError("must be the name of a file")
    return text


def _size(value: object) -> object:
    return size_from_text(value) if isinstance(value, str) else value


_URL_PATH = pattern(r"/[!\"$-~]*")


def _probe_path(text: str) -> str:
    if not _URL_PATH.fullmatch(text):
        raise ValueError(f'must be a path such as "/ready", is {shown(text)}')
    if text.partition("?")[0].rstrip("/") in {"/health", "/health_generate"}:
        raise ValueError(
            "must not be one at which SGLang generates a token: /health, /health_generate"
        )
    return text


def _ca_file(value: object) -> Path | None:
    if not isinstance(value, str):
        raise ValueError(f"must be text, is {form(value)}")  # noqa: TRY004 - pydantic collects these
    if not value:
        return None
    try:
        ssl.create_default_context(cafile=value)
    except (OSError, ValueError):  # SSLError is an OSError; a NUL in the name is a ValueError
        raise ValueError("must be a file of PEM certificates that can be read") from None
    return Path(value)


def _key_file(value: object) -> Path | None:
    """Whether it is the right one is seen where its certificate is known, see `pairs`."""
    if not isinstance(value, str):
        raise ValueError(f"must be text, is {form(value)}")  # noqa: TRY004 - pydantic collects these
    if not value:
        return None
    try:
        Path(value).read_bytes()
    except (OSError, ValueError):  # a NUL in the name is a ValueError
        raise ValueError("must be a file that can be read") from None
    return Path(value)


def pairs(certificate: Path, key: Path) -> bool:
    """Whether `key` holds the certificate's private key, and is not encrypted."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # Without a word of ours, OpenSSL would ask for a passphrase on the terminal, and wait.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except (OSError, ValueError):  # SSLError is an OSError
        return False
    return True


def _origin(text: str) -> str:
    return text if text == "*" else origin(text)


def _any_or_some(origins: tuple[str, ...]) -> tuple[str, ...]:
    if "*" in origins and len(origins) > 1:
        raise ValueError('must be ["*"], which is any origin, or a list without "*"')
    return origins


_KEY = pattern(r"[!-~]+")
_KEY_NAME = pattern(r"[A-Za-z0-9._-]{1,64}")


def _key(secret: SecretStr) -> SecretStr:
    # It goes into a header or comes from one.
    if not _KEY.fullmatch(secret.get_secret_value()):
        raise ValueError("must be visible ASCII characters without spaces, at least one")
    return secret


def _key_or_none(secret: SecretStr) -> SecretStr:
    return _key(secret) if secret else secret


def _key_name(name: str) -> str:
    if not _KEY_NAME.fullmatch(name):
        raise ValueError(
            "must have a name of 1 to 64 letters, digits, dots, dashes and underscores"
        )
    return name


def _keys(value: object) -> object:
    """A table as it is; from text, pairs (`name=key,...`) or else the TOML file that it names."""
    if not isinstance(value, str):
        return value
    if "=" in value:
        return _keys_of_pairs(value)
    return _keys_of_file(value) if value else {}


def _keys_of_pairs(text: str) -> dict[str, str]:
    pairs = [part.strip().partition("=") for part in text.split(",")]
    keys = {name: key for name, _, key in pairs}
    if len(keys) < len(pairs) or not all(equals for _, equals, _ in pairs):
        raise ValueError("must be name=key, separated by commas, each name once")
    return keys


def _keys_of_file(name: str) -> dict[str, object]:
    # The text may be a key in the wrong place, so it is not repeated, nor is what the file holds.
    try:
        return tomllib.loads(Path(name).read_text(encoding="utf-8-sig"))
    except OSError as error:
        why = error.strerror
    except (ValueError, RecursionError):
        why = 'its lines are not name = "key"'
    raise ValueError(f"must be a table of keys, or a file of them: {why}")


def _each_key_once(keys: Mapping[str, SecretStr]) -> Mapping[str, SecretStr]:
    owner: dict[str, str] = {}
    for name, key in keys.items():
        first = owner.setdefault(key.get_secret_value(), name)
        if first != name:
            raise ValueError(f"must not give one key two names, {first} and {name}")
    return keys


Port = Annotated[int, Field(ge=0, le=65535), Kind.INTEGER]
Count = Annotated[int, Field(ge=1, le=_MOST), Kind.INTEGER]
CountOrNone = Annotated[int, Field(ge=0, le=_MOST), Kind.INTEGER]
Changes = Annotated[int, Field(ge=2, le=_MOST), Kind.INTEGER]
Cap = Annotated[int | Literal["auto"], PlainValidator(_cap), Kind.CAP]
Sequences = Annotated[float, Field(ge=0, allow_inf_nan=False), Kind.NUMBER]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), Kind.NUMBER]
Seconds = Annotated[float, Field(ge=_LEAST_SECONDS, le=_YEAR, allow_inf_nan=False), Kind.SECONDS]
SecondsOrNone = Annotated[float, Field(ge=0, le=_YEAR, allow_inf_nan=False), Kind.SECONDS]
Size = Annotated[int, Field(ge=1, le=_MOST_BYTES), BeforeValidator(_size), Kind.SIZE]
Flag = Annotated[bool, Kind.FLAG]

Factor = Annotated[float, Field(ge=0.1, le=100.0, allow_inf_nan=False), Kind.NUMBER]
Acceptance = Annotated[float | Literal["auto"], PlainValidator(_acceptance), Kind.NUMBER_OR_AUTO]
FileName = Annotated[str, AfterValidator(_file_name), Kind.FILE_NAME]
TopologyWord = Annotated[Topology, Field(strict=False), Kind.WORD]
ControlWord = Annotated[Control, Field(strict=False), Kind.WORD]
VerdictWord = Annotated[Literal["base", "prefer", "any"], Kind.WORD]
LogFormat = Annotated[Literal["auto", "text", "json"], Kind.WORD]
LogLevel = Annotated[Literal["debug", "info", "warning", "error"], Kind.WORD]

Host = Annotated[str, AfterValidator(host), Kind.HOST]
Hosts = Annotated[tuple[Host, ...], Field(strict=False), Kind.HOSTS]
ServerUrl = Annotated[Url, PlainValidator(url), PlainSerializer(str), Kind.URL]
ProbePath = Annotated[str, AfterValidator(_probe_path), Kind.PATH]
CaFile = Annotated[Path | None, PlainValidator(_ca_file), Kind.FILE]
CertificateFile = CaFile
KeyFile = Annotated[Path | None, PlainValidator(_key_file), Kind.FILE]
_Origin = Annotated[str, AfterValidator(_origin)]
Origins = Annotated[
    tuple[_Origin, ...], Field(strict=False), AfterValidator(_any_or_some), Kind.ORIGINS
]

Secret = Annotated[SecretStr, AfterValidator(_key_or_none), Kind.SECRET]
_KeyName = Annotated[str, AfterValidator(_key_name)]
_Key = Annotated[SecretStr, AfterValidator(_key)]
ApiKeys = Annotated[
    Mapping[_KeyName, _Key], BeforeValidator(_keys), AfterValidator(_each_key_once), Kind.KEYS
]
