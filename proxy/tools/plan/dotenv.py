"""Keys written into a `.env`, which compose reads: what stands there of others is left as it is."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from re import Match, escape, sub
from re import compile as pattern
from typing import Final

from proxy.errors import SpecswitchError
from proxy.tools import destination

_LINE: Final = pattern(r"(?P<start>\s*(?:export\s+)?(?P<name>[A-Za-z_]\w*)\s*=[ \t]*)(?P<value>.*)")
_PLAIN: Final = pattern(r"[A-Za-z0-9_./:@,+=-]*")
_QUOTED: Final = pattern(
    r"(?P<quote>['\"])(?P<body>(?:\\.|(?!(?P=quote)).)*)(?P=quote)(?P<rest>.*)"
)
_BARE: Final = pattern(r"(?P<body>.*?)(?P<rest>(?:\s+#.*)?)\s*")
_MODE: Final = 0o600
"""Of a new file: it will hold a token and a password."""
_HEADING: Final = "# Written by `specswitch plan`."


def merged(
    text: str, values: Mapping[str, str], arguments: Mapping[str, Mapping[str, str | None]]
) -> str:
    """`text` with these variables set, each once, and all other lines as they are.

    `arguments` are variables that hold flags: of those, only the named flags are set, or taken out
    where they are None.

    Raises:
        SpecswitchError: a value that must change goes over several lines.
    """
    missing = {**dict.fromkeys(values), **dict.fromkeys(arguments)}
    lines: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        found = _LINE.fullmatch(line)
        if found is None or (found["name"] not in values and found["name"] not in arguments):
            lines.append(line)
            continue
        name = found["name"]
        if name not in missing:
            continue  # a variable that is set again counts last, and would undo this
        del missing[name]
        quote, body, rest = _value(found, number)
        if name in values:
            new = _written(values[name])
        elif body:
            # In its own quotes: what its author wrote in them means the same as before.
            new = f"{quote}{_with(body, arguments[name])}{quote}"
        else:
            new = _written(_with("", arguments[name]))
        lines.append(f"{found['start']}{new}{rest}")
    lines += _added(missing, values, arguments, after=bool(lines))
    return "".join(f"{line}\n" for line in lines)


def unset(text: str, required: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the variables that have no value in `text`."""
    found = filter(None, map(_LINE.fullmatch, text.splitlines()))
    filled = {each["name"] for each in found if each["value"].strip("'\" \t")}
    return tuple(name for name in required if name not in filled)


def read(path: Path) -> str:
    """The file as it is; nothing where there is none.

    Raises:
        SpecswitchError: it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise SpecswitchError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SpecswitchError(f"{path} cannot be read: it is not text in UTF-8") from error


def write(path: Path, text: str) -> None:
    """Put the file there in one step, for its owner alone if it is new.

    Raises:
        SpecswitchError: it cannot be written.
    """
    destination.write(path, text.encode(), mode=_MODE)


def _value(found: Match[str], number: int) -> tuple[str, str, str]:
    """The quote around a value, or nothing; what is in it; and what stands after it."""
    written = found["value"]
    if written[:1] in {"'", '"'}:
        quoted = _QUOTED.fullmatch(written)
        if quoted is None:
            raise SpecswitchError(
                f"line {number}: {found['name']} goes over several lines; put it on one"
            )
        return quoted["quote"], quoted["body"], quoted["rest"]
    bare = _BARE.fullmatch(written)
    return ("", "", "") if bare is None else ("", bare["body"], bare["rest"])


def _with(body: str, flags: Mapping[str, str | None]) -> str:
    for flag in flags:
        body = sub(rf"(?:^|\s+){escape(flag)}(?:=|\s+)\S+", "", body)
    added = [f"{flag} {value}" for flag, value in flags.items() if value is not None]
    return " ".join(part for part in (body.strip(), *added) if part)


def _added(
    missing: Mapping[str, object],
    values: Mapping[str, str],
    arguments: Mapping[str, Mapping[str, str | None]],
    *,
    after: bool,
) -> Iterator[str]:
    if not missing:
        return
    if after:
        yield ""
    yield _HEADING
    for name in missing:
        value = values[name] if name in values else _with("", arguments[name])
        yield f"{name}={_written(value)}"


def _written(value: str) -> str:
    """The value as it is where that is safe, else in the quotes within which it stays the same."""
    if _PLAIN.fullmatch(value):
        return value
    if "'" not in value:
        return f"'{value}'"
    return '"' + sub(r'(["\\$])', r"\\\1", value) + '"'
