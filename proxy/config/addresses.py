"""Hosts and URLs: one spelling for each, and what can be told without asking a name server.

Checks raise ValueError with a part of a sentence, "must be ...". A URL may carry a password, so
none is repeated.
"""

from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from re import IGNORECASE
from re import compile as pattern
from typing import Final
from urllib.parse import urlsplit

from proxy.config.forms import form, shown

_LABEL = pattern(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
_MAX_NAME: Final = 253
"""Characters of a DNS name, RFC 1035 section 2.3.4."""


def host(text: str) -> str:
    """`text` in one spelling: names in lower case, IPv6 compressed and without brackets."""
    bracketed = text.startswith("[") and text.endswith("]")
    address = _address(text[1:-1] if bracketed else text)
    if bracketed and not isinstance(address, IPv6Address):
        address = None
    if address is not None:
        return str(address)
    labels = text.removesuffix(".").split(".")
    named = len(text) <= _MAX_NAME and all(_LABEL.fullmatch(label) for label in labels)
    # A name that ends in digits would be taken for an abbreviated IPv4 address: 127.1, 10.0.0.256.
    if not named or labels[-1].isdigit():
        raise ValueError(f"must be a host name or an IP address, is {shown(text)}")
    return text.lower()


def _address(text: str) -> IPv4Address | IPv6Address | None:
    # Zones (fe80::1%eth0) mean something else on every machine, and nothing in a Host header.
    if "%" not in text:
        with suppress(ValueError):
            return ip_address(text)
    return None


def is_loopback(name: str) -> bool:
    """Whether only this machine can reach the host `name`."""
    address = _address(name)
    return name == "localhost" if address is None else address.is_loopback


def is_wildcard(name: str) -> bool:
    """Whether listening on the host `name` is listening on every address."""
    address = _address(name)
    return address is not None and address.is_unspecified


def same_host(one: str, other: str) -> bool:
    """Whether both are the same, as far as can be told."""
    if one == other:
        return True
    return "localhost" in {one, other} and is_loopback(one) and is_loopback(other)


@dataclass(frozen=True, slots=True)
class Url:
    """Where a server is: no path, no query, no user information."""

    secure: bool
    """https."""
    host: str
    """Without brackets."""
    port: int

    def __str__(self) -> str:
        scheme = "https" if self.secure else "http"
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{name}:{self.port}"


_URL = pattern(r"https?://[!-~]+", IGNORECASE)
_NO_ADDRESS: Final = "must have a host, and a port from 1 to 65535 if any"


def url(value: object) -> Url:
    """The server that `value` names."""
    if not isinstance(value, str):
        raise ValueError(f"must be text, is {form(value)}")  # noqa: TRY004 - pydantic collects these
    # urlsplit drops control characters and spaces without a word, so they are refused before.
    if not _URL.fullmatch(value):
        raise ValueError('must be an http or https URL such as "http://127.0.0.1:30000"')
    try:
        parts = urlsplit(value)
        name, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError(_NO_ADDRESS) from None
    if "@" in parts.netloc:
        raise ValueError("must not carry user information; a key belongs in api_key")
    if parts.path not in {"", "/"} or "?" in value or "#" in value:
        raise ValueError("must end after the port; paths come with the requests")
    if not name or port == 0 or parts.netloc.endswith(":"):
        raise ValueError(_NO_ADDRESS)
    secure = parts.scheme == "https"
    bracketed = parts.netloc.startswith("[")
    return Url(secure, host(f"[{name}]" if bracketed else name), port or (443 if secure else 80))


_ORIGIN = pattern(r"([A-Za-z][A-Za-z0-9+.-]*)://([!-~]+)")
_PORTS: Final = {"http": 80, "https": 443}


def origin(text: str) -> str:
    """`text` as a browser writes an origin: in lower case, without the scheme's own port."""
    match = _ORIGIN.fullmatch(text)
    if match is None or set("/?#@") & set(match[2]):
        raise ValueError(
            'must be an origin such as "https://chat.example": scheme, host, and port if any'
        )
    scheme = match[1].lower()
    try:
        parts = urlsplit(f"{scheme}://{match[2]}")
        name, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError(_NO_ADDRESS) from None
    if not name or port == 0 or parts.netloc.endswith(":"):
        raise ValueError(_NO_ADDRESS)
    name = host(f"[{name}]" if parts.netloc.startswith("[") else name)
    suffix = "" if port in {None, _PORTS.get(scheme)} else f":{port}"
    return f"{scheme}://[{name}]{suffix}" if ":" in name else f"{scheme}://{name}{suffix}"
