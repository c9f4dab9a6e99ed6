"""Keys written into a `.env`, which compose reads: what stands there of others is left as it is."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from re import DOTALL, VERBOSE, escape, sub
from re import compile as pattern
from typing import Final

from proxy.errors import SpecswitchError
from proxy.tools import destination

_LINE: Final = pattern(
    r"""
    (?P<start>[ \t]*(?:export[ \t]+)?(?P<name>[A-Za-z_]\w*)[ \t]*=[ \t]*)
    (?: (?P<quote>['"])(?P<quoted>(?:\\.|(?!(?P=quote)).)*)(?P=quote)
      | (?P<open>['"])
      | (?P<bare>[^\r\n]*?)(?=[ \t]+\#|(?<=[ \t])\#|[ \t]*\r?(?:\n|\Z))
    )
    (?P<rest>[^\n]*\n?)
    | [^\n]*\n | [^\n]+
    """,
    DOTALL | VERBOSE,
)
_PLAIN: Final = pattern(r"[A-Za-z0-9_./:@,+=-]*")
_MODE: Final = 0o600
"""Of a new file: it will hold a token and a password."""
_HEADING: Final = "# Written by `specswitch plan`."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """A line, or the lines of one value: start, quote, body, quote, rest; else all in rest."""

    number: int
    name: str | None
    start: str
    quote: str
    body: str
    rest: str

    @property
    def written(self) -> str:
        return f"{self.start}{self.quote}{self.body}{self.quote}{self.rest}"


def merged(
    text: str, values: Mapping[str, str | None], arguments: Mapping[str, Mapping[str, str | None]]
) -> str:
    """`text` with these variables set, each once, and all other lines as they are.

    Those that are None are taken out.
    `arguments` are variables that hold flags: of those, only the named flags are set, or taken out
    where they are None.

    Raises:
        SpecswitchError: a value that must change goes over several lines, or a quote is left open.
    """
    missing = dict.fromkeys([*given(values), *arguments])
    ours = {*values, *arguments}
    end = "\r\n" if "\r\n" in text else "\n"
    lines: list[str] = []
    for line in _lines(text):
        if line.name not in ours:
            lines.append(line.written)
        elif line.name in missing:  # again, it would count last and undo this
            del missing[line.name]
            lines.append(_changed(line, values.get(line.name), arguments.get(line.name, {})))
    if lines and missing:
        lines[-1] = lines[-1].rstrip("\r\n") + end
        lines.append(end)
    lines += [f"{line}{end}" for line in _added(missing, values, arguments)]
    return "".join(lines)


def _changed(line: _Line, value: str | None, flags: Mapping[str, str | None]) -> str:
    if "\n" in line.body:
        raise SpecswitchError(
            f"line {line.number}: {line.name} goes over several lines; put it on one"
        )
    if value is not None:
        new = _written(value)
    elif line.body:
        # In its own quotes: what its author wrote in them means the same as before.
        new = f"{line.quote}{_with(line.body, flags)}{line.quote}"
    else:
        new = _written(_with("", flags))
    apart = " " if line.rest.startswith("#") else ""
    return f"{line.start}{new}{apart}{line.rest}"


def given(values: Mapping[str, str | None]) -> dict[str, str]:
    """Those of the variables that are to be set."""
    return {name: value for name, value in values.items() if value is not None}


def value(text: str, name: str) -> str | None:
    """What a variable is set to, without quotes; None where it is not. The last line counts.

    Raises:
        SpecswitchError: a quote is left open.
    """
    return {line.name: line.body for line in _lines(text)}.get(name)


def unset(text: str, required: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the variables that have no value in `text`.

    Raises:
        SpecswitchError: a quote is left open.
    """
    filled = {line.name for line in _lines(text) if line.body}
    return tuple(name for name in required if name not in filled)


def read(path: Path) -> str:
    """The file as it is; nothing where there is none, or something that is no file.

    Raises:
        SpecswitchError: it cannot be read.
    """
    try:
        if not path.is_file() and not path.is_dir():
            return ""
        return path.read_bytes().decode("utf-8-sig")  # read_text would change how lines end
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


def _lines(text: str) -> Iterator[_Line]:
    """The lines with their ends; a value in quotes may go over several."""
    number = 0
    for found in _LINE.finditer(text):  # it matches anything
        whole = found[0]
        if found["open"]:
            what = f"line {number + 1}: the quote of {found['name']} is not closed"
            raise SpecswitchError(what)
        yield _Line(
            number=number + 1,
            name=found["name"],
            start=found["start"] or "",
            quote=found["quote"] or "",
            body=(found["quoted"] or found["bare"] or ""),
            rest=found["rest"] if found["name"] else whole,
        )
        number += whole.count("\n")


def _with(body: str, flags: Mapping[str, str | None]) -> str:
    for flag in flags:
        body = sub(rf"(?:^|\s+){escape(flag)}(?:=|\s+)\S+", "", body)
    added = [f"{flag} {value}" for flag, value in flags.items() if value is not None]
    return " ".join(part for part in (body.strip(), *added) if part)


def _added(
    missing: Mapping[str, object],
    values: Mapping[str, str | None],
    arguments: Mapping[str, Mapping[str, str | None]],
) -> Iterator[str]:
    if missing:
        yield _HEADING
    for name in missing:
        decided = values.get(name)
        yield f"{name}={_written(_with('', arguments[name]) if decided is None else decided)}"


def _written(value: str) -> str:
    """The value as it is where that is safe, else in the quotes within which it stays the same."""
    if _PLAIN.fullmatch(value):
        return value
    if "'" not in value:
        return f"'{value}'"
    return '"' + sub(r'(["\\$])', r"\\\1", value) + '"'
