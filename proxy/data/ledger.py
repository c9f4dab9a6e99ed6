"""What is noted of one request on its way, and the record it becomes at its end."""

from proxy.core.eligibility import Traits
from proxy.core.endpoints import Endpoint
from proxy.core.observer import Record
from proxy.core.places import Place
from proxy.core.route import Need
from proxy.core.usage import usage_of
from proxy.core.words import Outcome
from proxy.data.events import Finish
from proxy.data.exchange import Exchange

MAX_NOTED_BYTES = 65536
"""A plain JSON answer is kept up to this size until its end, to read its usage; ample for text."""

PLAIN = Traits(1, False, None, None, None, frozenset(), True)
"""Of a body that is not read."""

OTHER = "other"
"""The endpoint of what has none: a path that is not served, or no request at all."""


ADMIN_KEY = "admin_api_key"
"""The name under which the key for administration is logged, as those of clients are by theirs."""


class Account:
    """One request's times and counts. Seconds are monotonic stamps until `closed`."""

    __slots__ = (
        "_noted",
        "began_at",
        "endpoint",
        "key_name",
        "method",
        "need",
        "notes_answer",
        "place",
        "placed_at",
        "queued_at",
        "read_at",
        "request_bytes",
        "request_id",
        "response_bytes",
        "status",
        "traits",
    )

    def __init__(
        self, request_id: bytes, endpoint: Endpoint | None, method: str, began_at: float
    ) -> None:
        self.request_id = request_id
        self.endpoint = endpoint
        self.method = method
        self.began_at = began_at
        self.key_name: str | None = None
        self.traits = PLAIN
        self.need: Need | None = None
        self.place: Place | None = None
        self.read_at: float | None = None
        self.queued_at: float | None = None
        """When it entered the waiting room, if it did."""
        self.placed_at: float | None = None
        self.status: int | None = None
        self.notes_answer = False
        self.request_bytes = 0
        self.response_bytes = 0
        self._noted: list[bytes] = []

    def read(self, traits: Traits, size: int, now: float) -> None:
        """The whole request is here: `size` bytes of body."""
        self.traits = traits
        self.request_bytes = size
        self.read_at = now

    def placed(self, place: Place, now: float) -> None:
        """It has its first place."""
        self.place = place
        self.placed_at = now

    @property
    def arrived_at(self) -> float:
        """When the whole request was here: the one stamp that counts for waiting."""
        assert self.read_at is not None  # noqa: S101 - a place is asked for after that
        return self.read_at

    def waits_again(self, now: float) -> None:
        """Its place was of no use, and it waits for another."""
        self.place = None
        self.placed_at = None
        if self.queued_at is None:
            self.queued_at = now

    def passed(self, pieces: list[bytes]) -> None:
        """Pieces of the response have gone by."""
        for piece in pieces:
            self.response_bytes += len(piece)
        if self.notes_answer and self.response_bytes <= MAX_NOTED_BYTES:
            self._noted += pieces

    def decision(self) -> Record | None:
        """The record so far of one that has a place; None without."""
        if self.place is None or self.endpoint is None:
            return None
        record = Record(
            request_id=self.request_id.decode("ascii"),
            endpoint=self.endpoint.template,
            method=self.method,
        )
        self._add_place(record, self.place)
        return record

    def _add_place(self, record: Record, place: Place) -> None:
        record.upstream = place.upstream
        record.reason = place.reason
        record.mode = place.mode
        record.in_flight = place.in_flight
        record.decided_at = place.at

    def answered(
        self, outcome: Outcome, status: int, now: float, *, code: str | None = None
    ) -> Record:
        """The record of what was answered here and at once, a request or less than one."""
        return Record(
            request_id=self.request_id.decode("ascii") or None,
            endpoint=OTHER if self.endpoint is None else self.endpoint.template,
            method=self.method,
            outcome=outcome,
            status=status,
            code=code,
            duration_seconds=now - self.began_at,
        )

    def closed(self, finish: Finish, exchange: Exchange, now: float) -> Record:
        """The record of how it ended."""
        refusal = finish.refusal
        status = self.status
        if refusal is not None and status is None:
            status = refusal.status
        watch = exchange.watch
        code = None if refusal is None else refusal.code
        if code is None and watch is not None and watch.error_code is not None:
            code = str(watch.error_code)
        record = Record(
            request_id=self.request_id.decode("ascii"),
            endpoint=OTHER if self.endpoint is None else self.endpoint.template,
            method=self.method,
            key_name=self.key_name,
            outcome=finish.outcome,
            status=status if finish.outcome is not Outcome.ABANDONED else None,
            code=code,
            stream=watch is not None,
            sequences=0 if self.need is None else self.need.weight,
            attempts=exchange.attempts,
            duration_seconds=now - self.began_at,
            request_bytes=self.request_bytes,
            response_bytes=self.response_bytes,
            midstream=refusal is not None and self.status is not None,
        )
        if self.place is not None:
            self._add_place(record, self.place)
        self._add_times(record, exchange, now)
        self._add_tokens(record, exchange)
        return record

    def _add_times(self, record: Record, exchange: Exchange, now: float) -> None:
        if self.queued_at is not None:
            record.waited_seconds = (self.placed_at or now) - self.queued_at
        if self.read_at is not None and exchange.sent_at is not None and exchange.attempts == 1:
            waited = record.waited_seconds or 0.0
            record.overhead_seconds = exchange.sent_at - self.read_at - waited

    def _add_tokens(self, record: Record, exchange: Exchange) -> None:
        watch = exchange.watch
        dialect = None if self.endpoint is None else self.endpoint.dialect
        if dialect is None:
            return  # what is no generation has times and tokens of another kind
        if watch is None:
            complete = self.response_bytes <= MAX_NOTED_BYTES
            if self._noted and complete and record.outcome is Outcome.OK:
                record.output_tokens = usage_of(b"".join(self._noted), dialect)
            return
        first, last, tokens = watch.first_token_at, watch.last_token_at, watch.completion_tokens
        record.output_tokens = tokens
        if first is None or self.read_at is None:
            return
        record.first_token_seconds = first - self.read_at
        if last is None or tokens is None or exchange.was_paused:
            return  # a pause for a slow client is not the engine's time
        tokens_each = tokens / max(1, record.sequences)
        if tokens_each > 1.0:
            record.seconds_per_token = (last - first) / (tokens_each - 1.0)
