"""Header rules: what passes, what does not, and which heads are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.http import (
    HOP_BY_HOP,
    Framing,
    RequestIds,
    client_head,
    decision_lines,
    engine_head,
    first_values,
    head_fault,
    header,
    named_by_connection,
    transfer_codings,
)
from proxy.core.keys import KEY_HEADERS
from proxy.core.words import UpstreamName

Headers = list[tuple[bytes, bytes]]

OURS_TO_ENGINE = {
    b"host",
    b"content-length",
    b"expect",
    b"x-request-id",
    b"x-specswitch-attempt",
    b"x-specswitch-route",
}
OURS_TO_CLIENT = {b"x-request-id", b"x-specswitch-upstream", b"x-specswitch-reason"}
ADDED = (b"host: 127.0.0.1:30000", b"x-request-id: r1", b"x-specswitch-attempt: 1")

HOST = (b"Host", b"a")
CHUNKED = (b"Transfer-Encoding", b"chunked")
LENGTH = (b"Content-Length", b"5")


def lines_of(head: bytes) -> list[bytes]:
    """Return the lines of a head, which must end as heads do."""
    assert head.endswith(b"\r\n\r\n")
    return head[:-4].split(b"\r\n")


def to_engine(
    headers: Headers, *, body_length: int | None = None, drop_keys: bool = False
) -> list[bytes]:
    """Return the lines of a request to an engine."""
    return lines_of(
        engine_head(
            b"POST",
            b"/generate?a=b",
            headers,
            added=ADDED,
            body_length=body_length,
            drop_keys=drop_keys,
        )
    )


def to_client(headers: Headers, framing: Framing) -> list[bytes]:
    """Return the lines of an answer to a client."""
    head = client_head(200, b"OK", headers, added=(b"x-request-id: r1",), framing=framing)
    return lines_of(head)


# Reading headers ---------------------------------------------------------------------------


def test_a_header_is_found_by_its_lower_case_name() -> None:
    """Names have no case; of several the first counts."""
    headers = [(b"A", b"1"), (b"X-Y", b"2"), (b"x-y", b"3")]

    assert header(headers, b"x-y") == b"2"
    assert header(headers, b"x-z") is None


def test_the_first_value_of_each_name() -> None:
    """By its name in lower case; as many as there are headers, but where a name stands twice."""
    headers = [(b"A", b"1"), (b"X-Y", b"2"), (b"x-y", b"3")]

    assert first_values(headers) == {b"a": b"1", b"x-y": b"2"}


def test_the_transfer_codings() -> None:
    """Of every line, in lower case, without the white space around them."""
    assert transfer_codings([HOST]) == []
    assert transfer_codings([CHUNKED, HOST, (b"TRANSFER-ENCODING", b" GZIP, chunked ")]) == [
        b"chunked",
        b"gzip, chunked",
    ]


@pytest.mark.parametrize(
    ("headers", "names"),
    [
        ([], set()),
        ([(b"Accept", b"close")], set()),
        ([(b"Connection", b"close")], {b"close"}),
        ([(b"Connection", b"close"), (b"connection", b"x-a")], {b"close", b"x-a"}),
        ([(b"connection", b"Keep-Alive"), (b"A", b"1"), (b"a", b"2")], {b"keep-alive"}),
        ([(b"Connection", b" Keep-Alive , X-A")], {b"keep-alive", b"x-a"}),
        ([(b"connection", b"x-a"), (b"CONNECTION", b"X-B")], {b"x-a", b"x-b"}),
    ],
)
def test_what_connection_names(headers: Headers, names: set[bytes]) -> None:
    """All of its lines count, in lower case."""
    assert named_by_connection(headers) == names


# Refused heads -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "target", "version", "headers"),
    [
        ("GET", b"/", "1.1", [HOST]),
        ("GET", b"/", "1.0", []),
        ("GET", b"/", "1.0", [HOST]),
        ("GET", b"/a?b=http://c", "1.1", [(b"HOST", b"")]),
        ("POST", b"/", "1.1", [HOST, LENGTH]),
        ("POST", b"/", "1.0", [LENGTH]),
        ("POST", b"/", "1.1", [HOST, CHUNKED]),
        ("POST", b"/", "1.1", [HOST, (b"transfer-encoding", b" Chunked ")]),
        ("OPTIONS", b"/", "1.1", [HOST]),
    ],
)
def test_a_head_that_is_accepted(
    method: str, target: bytes, version: str, headers: Headers
) -> None:
    """Two readers read it in one way."""
    assert head_fault(method, target, version, headers, first_values(headers)) is None


@pytest.mark.parametrize(
    ("method", "target", "version", "headers", "why"),
    [
        ("GET", b"http://a/", "1.1", [HOST], "must be a path"),
        ("OPTIONS", b"*", "1.1", [HOST], "must be a path"),
        ("CONNECT", b"a:443", "1.1", [HOST], "must be a path"),
        ("GET", b"", "1.1", [HOST], "must be a path"),
        ("GET", b"/", "0.9", [], "HTTP/0.9 is not spoken here"),
        ("GET", b"/", "2.0", [HOST], "HTTP/2.0 is not spoken here"),
        ("CONNECT", b"/", "1.1", [HOST], "CONNECT is not served"),
        ("GET", b"/", "1.1", [], "exactly one Host"),
        ("GET", b"/", "1.1", [HOST, HOST], "exactly one Host"),
        ("GET", b"/", "1.0", [HOST, (b"host", b"b")], "exactly one Host"),
        ("POST", b"/", "1.1", [HOST, LENGTH, LENGTH], "more than one Content-Length"),
        ("POST", b"/", "1.1", [HOST, CHUNKED, LENGTH], "beside Content-Length"),
        ("POST", b"/", "1.0", [CHUNKED], "in HTTP/1.0"),
        ("POST", b"/", "1.1", [HOST, CHUNKED, CHUNKED], "chunked is the only"),
        ("POST", b"/", "1.1", [HOST, (CHUNKED[0], b"gzip, chunked")], "chunked is the only"),
        ("POST", b"/", "1.1", [HOST, (CHUNKED[0], b"identity")], "chunked is the only"),
        ("POST", b"/", "1.1", [HOST, (CHUNKED[0], b"xchunked")], "chunked is the only"),
        ("POST", b"/", "1.1", [HOST, (CHUNKED[0], b"")], "chunked is the only"),
    ],
)
def test_a_head_that_is_refused(
    *, method: str, target: bytes, version: str, headers: Headers, why: str
) -> None:
    """It is well-formed, and says why it has no place here."""
    assert why in (head_fault(method, target, version, headers, first_values(headers)) or "")


# Request ids -------------------------------------------------------------------------------


@pytest.mark.parametrize("offered", [b"r-1", b"!~", b"x" * 128, b" r-1\t"])
def test_a_valid_id_is_kept(offered: bytes) -> None:
    """The client's, without the white space that may stand around a header's value."""
    assert RequestIds("0" * 16).choose(offered) == offered.strip()


@pytest.mark.parametrize(
    "offered", [None, b"", b"  ", b"x" * 129, b"a b", b"a\x7f", b"a\n", b"\xc3\xa9"]
)
def test_another_id_is_replaced(offered: bytes | None) -> None:
    """One that is not 1 to 128 visible ASCII characters would not survive a log or a header."""
    ids = RequestIds("00c0ffee" * 2)

    assert ids.choose(offered) == b"00c0ffee00c0ffee0000000000000001"
    assert ids.choose(offered) == b"00c0ffee00c0ffee0000000000000002"


def test_the_decision_is_told() -> None:
    """Which request it was, where it went, and why."""
    assert decision_lines(b"r1", UpstreamName.SPEC, "eligibility:lora") == (
        b"x-request-id: r1",
        b"x-specswitch-upstream: spec",
        b"x-specswitch-reason: eligibility:lora",
    )


# To an engine ------------------------------------------------------------------------------


def test_a_request_to_an_engine() -> None:
    """Our lines first, then the client's as they came, the length last."""
    headers = [
        (b"Host", b"public.example"),
        (b"User-Agent", b"a"),
        (b"Connection", b"keep-alive, X-Hop"),
        (b"x-hop", b"1"),
        (b"Authorization", b"Bearer sk"),
        (b"ACCEPT", b""),
        (b"user-agent", b"\xe4 b  "),
        (b"X-Request-Id", b"theirs"),
        (b"X-Specswitch-Route", b"spec"),
        (b"Content-Length", b"99"),
        (b"Expect", b"100-continue"),
    ]

    assert to_engine(headers, body_length=5) == [
        b"POST /generate?a=b HTTP/1.1",
        *ADDED,
        b"User-Agent: a",
        b"Authorization: Bearer sk",
        b"ACCEPT: ",
        b"user-agent: \xe4 b  ",
        b"content-length: 5",
    ]


@pytest.mark.parametrize(
    ("body_length", "line"), [(None, []), (0, [b"content-length: 0"]), (7, [b"content-length: 7"])]
)
def test_only_a_body_has_a_length(body_length: int | None, line: list[bytes]) -> None:
    """A request without a body stays one, an empty body stays an empty body."""
    assert to_engine([], body_length=body_length)[1 + len(ADDED) :] == line


def test_a_chunked_request_is_sent_counted() -> None:
    """Its body is whole by then, so there is one way to find its end."""
    assert to_engine([CHUNKED], body_length=7)[1 + len(ADDED) :] == [b"content-length: 7"]


@pytest.mark.parametrize("name", sorted(KEY_HEADERS))
def test_keys_are_the_clients_secret(name: bytes) -> None:
    """They are kept from an engine where they are ours to check or to replace, else passed on."""
    headers = [(name.title(), b"Bearer sk")]

    assert to_engine(headers)[1 + len(ADDED) :] == [name.title() + b": Bearer sk"]
    assert to_engine(headers, drop_keys=True)[1 + len(ADDED) :] == []


def test_what_connection_names_cannot_remove_what_we_add() -> None:
    """A client may not strip our Host, our key or our id from its request."""
    headers = [(b"Connection", b"host, x-request-id, x-specswitch-attempt, content-length")]

    assert to_engine(headers, body_length=5)[1:] == [*ADDED, b"content-length: 5"]


# To a client -------------------------------------------------------------------------------


def test_an_answer_to_a_client() -> None:
    """The engine's headers as they came, then ours."""
    headers = [
        (b"Date", b"today"),
        (b"Server", b"uvicorn"),
        (b"X-Request-Id", b"theirs"),
        (b"x-specswitch-reason", b"made up"),
        (b"Connection", b"close, x-hop"),
        (b"X-Hop", b"1"),
        (b"Set-Cookie", b"a"),
        (b"Set-Cookie", b"b"),
        (b"content-length", b"5"),
    ]

    assert to_client(headers, Framing.LENGTH) == [
        b"HTTP/1.1 200 OK",
        b"Date: today",
        b"Server: uvicorn",
        b"Set-Cookie: a",
        b"Set-Cookie: b",
        b"content-length: 5",
        b"x-request-id: r1",
    ]


def test_the_status_line_is_the_engines() -> None:
    """Its code and its phrase, whatever they are."""
    head = client_head(599, b"Made Up", [], added=(), framing=Framing.NONE)

    assert head == b"HTTP/1.1 599 Made Up\r\n\r\n"


@pytest.mark.parametrize(
    ("framing", "line"),
    [
        (Framing.NONE, []),
        (Framing.LENGTH, []),
        (Framing.CLOSE, []),
        (Framing.CHUNKED, [b"transfer-encoding: chunked"]),
    ],
)
def test_how_the_end_is_marked(framing: Framing, line: list[bytes]) -> None:
    """The engine's chunks end with its connection; whether ours has any is our own business."""
    assert to_client([CHUNKED], framing) == [b"HTTP/1.1 200 OK", b"x-request-id: r1", *line]


def test_a_length_cannot_be_named_away() -> None:
    """Without it the client would wait for the end of the connection."""
    headers = [(b"Connection", b"close, Content-Length"), (b"Content-Length", b"5")]

    assert b"Content-Length: 5" in to_client(headers, Framing.LENGTH)


@pytest.mark.parametrize(("status", "kept"), [(204, False), (304, True), (200, True)])
def test_no_content_has_no_length(status: int, *, kept: bool) -> None:
    """Not even nought: some would wait for what it announces."""
    head = client_head(status, b"", [LENGTH], added=(), framing=Framing.NONE)

    assert (b"\r\n%s: %s\r\n" % LENGTH in head) is kept


# Any headers -------------------------------------------------------------------------------

KNOWN = sorted(HOP_BY_HOP | OURS_TO_ENGINE | OURS_TO_CLIENT | KEY_HEADERS)
NAMES = st.sampled_from([*KNOWN, b"accept", b"x-a", b"x-b", b"cookie", b"date"])
CASED = st.builds(
    lambda name, change: change(name),
    NAMES,
    st.sampled_from([bytes.lower, bytes.upper, bytes.title]),
)
VALUES = st.binary(max_size=8).map(lambda b: b.replace(b"\r", b"").replace(b"\n", b""))
NAMING = st.tuples(st.just(b"Connection"), st.lists(CASED, max_size=3).map(b" , ".join))
HEADERS = st.lists(st.tuples(CASED, VALUES) | NAMING, max_size=20)


def named_in(headers: Headers) -> set[bytes]:
    """Return what every `Connection` names, by another way than the code's."""
    values = [value for name, value in headers if name.lower() == b"connection"]
    return {name.strip().lower() for value in values for name in value.split(b",")}


@given(headers=HEADERS, drop_keys=st.booleans(), body_length=st.none() | st.integers(0, 99))
def test_exactly_what_is_not_hop_by_hop_reaches_an_engine(
    *, headers: Headers, drop_keys: bool, body_length: int | None
) -> None:
    """In order, byte for byte, once; beside it only what is ours."""
    gone = HOP_BY_HOP | OURS_TO_ENGINE | named_in(headers)
    if drop_keys:
        gone |= KEY_HEADERS
    passed = [name + b": " + value for name, value in headers if name.lower() not in gone]
    length = [] if body_length is None else [b"content-length: %d" % body_length]

    found = to_engine(headers, body_length=body_length, drop_keys=drop_keys)

    assert found[1:] == [*ADDED, *passed, *length]


@given(HEADERS, st.sampled_from(Framing))
def test_exactly_what_is_not_hop_by_hop_reaches_a_client(
    headers: Headers, framing: Framing
) -> None:
    """In order, byte for byte, once; beside it only what is ours."""
    gone = HOP_BY_HOP | OURS_TO_CLIENT | (named_in(headers) - {b"content-length"})
    passed = [name + b": " + value for name, value in headers if name.lower() not in gone]
    chunked = [b"transfer-encoding: chunked"] if framing is Framing.CHUNKED else []

    assert to_client(headers, framing)[1:] == [*passed, b"x-request-id: r1", *chunked]
