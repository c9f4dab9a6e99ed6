"""Keys written into a `.env`: what a plan decides is set once, and all else is left as it is."""

import os
import stat
from pathlib import Path

import pytest

from proxy.errors import SpecswitchError
from proxy.tools.plan import dotenv

VALUES = {"MODEL": "org/model", "TP_SIZE": "2"}
ARGUMENTS = {"SPEC_EXTRA_ARGS": {"--chunked-prefill-size": "4096", "--kv-cache-dtype": None}}


def test_a_new_file_has_the_keys_in_their_order() -> None:
    """And says who wrote it."""
    assert dotenv.merged("", VALUES, ARGUMENTS) == (
        "# Written by `specswitch plan`.\n"
        "MODEL=org/model\n"
        "TP_SIZE=2\n"
        "SPEC_EXTRA_ARGS='--chunked-prefill-size 4096'\n"
    )


def test_lines_of_others_stay_where_they_are() -> None:
    """Comments, secrets, order, spaces, blank lines; a key that is commented out is not set."""
    before = (
        "# mine\n\nHF_TOKEN=hf_x\nexport TP_SIZE = 1 # of four\n#MODEL=other\nGRAFANA_PORT=3000\n"
        "not a line of this\n"
    )
    assert dotenv.merged(before, {"TP_SIZE": "4"}, {}) == before.replace("= 1 #", "= 4 #")


def test_a_key_that_is_set_twice_is_set_once() -> None:
    """The last would have counted, and undone the plan."""
    after = dotenv.merged("MODEL=a\nTP_SIZE=1\nMODEL=b\n", VALUES, {})
    assert after == "MODEL=org/model\nTP_SIZE=2\n"


def test_keys_that_are_missing_come_at_the_end() -> None:
    """Below a heading, apart from what was there."""
    after = dotenv.merged("HF_TOKEN=x", VALUES, {})
    assert after == ("HF_TOKEN=x\n\n# Written by `specswitch plan`.\nMODEL=org/model\nTP_SIZE=2\n")


def test_what_must_not_be_there_is_taken_out() -> None:
    """However often it is set; what is commented out is not, and nothing is added."""
    before = "A=1\nTP_SIZE=1\n# TP_SIZE=3\nexport TP_SIZE='2' # two\n"
    assert dotenv.merged(before, {"TP_SIZE": None, "B": None}, {}) == "A=1\n# TP_SIZE=3\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", None),
        ("#A=1\n", None),
        ("A=\n", ""),
        ("A=1 # one\nA='x y' # two\n", "x y"),
        ("export A = b\nAA=c\n", "b"),
    ],
)
def test_a_value_is_read(text: str, found: str | None) -> None:
    """The last line counts, without its quotes and its comment."""
    assert dotenv.value(text, "A") == found


def test_writing_it_again_changes_nothing() -> None:
    """However often it is planned."""
    once = dotenv.merged("HF_TOKEN=x\nSPEC_EXTRA_ARGS=--a b # why\n", VALUES, ARGUMENTS)
    assert dotenv.merged(once, VALUES, ARGUMENTS) == once


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "'--chunked-prefill-size 4096'"),
        ("''", "'--chunked-prefill-size 4096'"),
        ("--a b", "--a b --chunked-prefill-size 4096"),
        ("--a b # why", "--a b --chunked-prefill-size 4096 # why"),
        ("'--a {\"b\": 1}'", "'--a {\"b\": 1} --chunked-prefill-size 4096'"),
        ('"--a ${B} \\"c\\"" # why', '"--a ${B} \\"c\\" --chunked-prefill-size 4096" # why'),
        ("--chunked-prefill-size 8192 --a", "--a --chunked-prefill-size 4096"),
        ("--a --chunked-prefill-size=8192 --b", "--a --b --chunked-prefill-size 4096"),
        ("'--kv-cache-dtype fp8_e5m2'", "'--chunked-prefill-size 4096'"),
        ("--x-kv-cache-dtype y", "--x-kv-cache-dtype y --chunked-prefill-size 4096"),
    ],
)
def test_flags_of_others_stay_in_a_value_of_flags(before: str, after: str) -> None:
    """In the quotes in which they were written; only those that a plan decides are replaced."""
    text = dotenv.merged(f"SPEC_EXTRA_ARGS={before}\n", {}, ARGUMENTS)
    assert text == f"SPEC_EXTRA_ARGS={after}\n"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("org/model-1.5_x:y@z", "org/model-1.5_x:y@z"),
        ("/a folder/model", "'/a folder/model'"),
        ("a$b #c", "'a$b #c'"),
        ('it\'s "$x" \\', '"it\'s \\"\\$x\\" \\\\"'),
    ],
)
def test_a_value_means_what_it_says(value: str, written: str) -> None:
    """Nothing in it is a variable or a comment to compose."""
    assert dotenv.merged("MODEL=x\n", {"MODEL": value}, {}) == f"MODEL={written}\n"


def test_a_value_over_several_lines_is_not_cut() -> None:
    """Its other lines would be left behind."""
    with pytest.raises(SpecswitchError, match="line 2: MODEL goes over several lines"):
        dotenv.merged("A=1\nMODEL='a\nb'\n", VALUES, {})
    assert "KEY='a\nb'" in dotenv.merged("KEY='a\nb'\n", VALUES, {})


def test_keys_without_a_value_are_told() -> None:
    """Empty, quoted, or not there at all."""
    text = "A=1\nB=\nC=''\n#D=1\nE= # to do\nF=\"\" # set\nG=x#y\n"
    assert dotenv.unset(text, tuple("ABCDEFGH")) == ("B", "C", "D", "E", "F", "H")


def test_a_value_over_several_lines_is_one() -> None:
    """What looks like another variable in it is none."""
    text = "NOTE='first\nMODEL=inner\n\\'last' # note\nMODEL=m\n"
    assert dotenv.merged(text, {"MODEL": "new"}, {}) == text.replace("=m\n", "=new\n")
    assert dotenv.value(text, "MODEL") == "m"


def test_a_quote_that_is_left_open_is_an_error() -> None:
    """Nobody can say where the value ends."""
    with pytest.raises(SpecswitchError, match="line 2: the quote of B is not closed"):
        dotenv.merged("A=1\nB='x\nMODEL=y\n", VALUES, {})


def test_lines_end_as_they_did() -> None:
    """On Windows; and only a line feed ends one."""
    before = "A=x\u2028y\x0cz\r\nTP_SIZE=1 # two\r\nB=1"
    assert dotenv.merged(before, {"TP_SIZE": "2", "C": "3"}, {}) == (
        "A=x\u2028y\x0cz\r\nTP_SIZE=2 # two\r\nB=1\r\n\r\n"
        "# Written by `specswitch plan`.\r\nC=3\r\n"
    )


def test_a_comment_stays_a_comment() -> None:
    """Also where nothing stood before it."""
    assert dotenv.merged("MODEL= # to do\n", {"MODEL": "m"}, {}) == "MODEL= m # to do\n"


def test_a_file_is_for_its_owner_and_keeps_its_mode(tmp_path: Path) -> None:
    """A new one will hold a token and a password."""
    path = tmp_path / ".env"
    dotenv.write(path, "A=1\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    dotenv.write(path, "A=2\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert dotenv.read(path) == "A=2\n"
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_not_there_is_empty(tmp_path: Path) -> None:
    """And what cannot be read is an error."""
    assert dotenv.read(tmp_path / ".env") == ""
    with pytest.raises(SpecswitchError, match="cannot be read: Is a directory"):
        dotenv.read(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert dotenv.read(tmp_path / "pipe") == ""
    (tmp_path / "marked").write_bytes(b"\xef\xbb\xbfA=1\r\n")
    assert dotenv.read(tmp_path / "marked") == "A=1\r\n"
    (tmp_path / "bytes").write_bytes(b"\xff")
    with pytest.raises(SpecswitchError, match="cannot be read: it is not text in UTF-8"):
        dotenv.read(tmp_path / "bytes")
