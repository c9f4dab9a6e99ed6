"""JSON that may hold anything."""

from proxy.core.fields import Fields


def test_fields_know_what_has_the_wrong_type() -> None:
    """Unknown, in each of the forms; in a list of numbers it keeps its place."""
    fields = Fields({"a": "x", "b": True, "c": 1.5, "d": -1, "e": [1, "x", True], "f": '{"g": 1}'})
    assert (fields.text("b"), fields.count("b"), fields.number("b"), fields.flag("a")) == (
        None,
        None,
        None,
        None,
    )
    assert (fields.count("d"), fields.amount("d"), fields.number("d")) == (None, None, -1.0)
    assert fields.counts("e") == [1]
    assert fields.amounts("e") == [1.0, None, None]
    assert (fields.counts("a"), fields.amounts("a"), fields.many("a")) == ([], [], [])
    assert fields.within("f").count("g") == 1
    assert fields.canonical("absent") is None
    assert fields.canonical("b") == "true"
    assert list(Fields([1])) == []
