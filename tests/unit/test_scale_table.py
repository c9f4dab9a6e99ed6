"""The table of docs/scaling.md goes between its marks, and nowhere else."""

from tests.scale.table import BEGIN, END, between, put


def test_a_page_keeps_what_is_around_the_table() -> None:
    """The first time and each further one."""
    page = f"before\n\n{BEGIN}\n{END}\n\nafter\n"
    once = put(page, "| a |")

    assert once == f"before\n\n{BEGIN}\n\n| a |\n\n{END}\n\nafter\n"
    assert put(once, "| a |") == once
    assert put(put(page, "| b |"), "| a |") == once
    assert between(once).strip() == "| a |"
