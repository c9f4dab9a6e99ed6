"""Traces are read whole or not at all, and a bad line is named."""

from pathlib import Path
from statistics import fmean, median, pvariance

import pytest

from proxy.errors import SpecswitchError
from proxy.sim.traces import MOST_TOKENS, Request, conversation, rate, read, synthetic, written

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"
OURS = "at,prompt_tokens,output_tokens"
JSON = '{"at": 10, "prompt_tokens": 5, "output_tokens": 6}'


def _file(folder: Path, content: str | bytes) -> Path:
    path = folder / "trace"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_the_azure_format(tmp_path: Path) -> None:
    """As the data set has it: seven digits, CRLF; times count from the first request."""
    content = (
        f"{AZURE}\r\n2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:15:50.9951690,396,109\r\n"
    )
    found = read(_file(tmp_path, content))
    assert [(one.prompt_tokens, one.output_tokens) for one in found] == [(374, 44), (396, 109)]
    assert [one.at for one in found] == pytest.approx([0.0, 4.314579], abs=1e-5)


def test_azure_times_with_a_zone(tmp_path: Path) -> None:
    """The data set of 2024 has one; both kinds count as UTC."""
    content = f"{AZURE}\n2024-05-10 00:00:00,1,2\n2024-05-10 00:00:01.5+00:00,3,4\n"
    assert [one.at for one in read(_file(tmp_path, content))] == [0.0, 1.5]


@pytest.mark.parametrize(
    "content",
    [
        f"{OURS}\n10,5,6\n12.5,7,8\n",
        f"{OURS}\r\n10,5,6\r\n12.5,7,8",
        f"\ufeff{OURS}\n10,5,6\n\n12.5,7,8\n\n",
        ' at , prompt_tokens,output_tokens\n"10", 5,6\n12.5 ,7,8\n',
        f'{JSON}\n{{"at": 12.5, "prompt_tokens": 7, "output_tokens": 8, "model": "x"}}\n',
        f'\ufeff{JSON}\r\n\r\n{{"at":12.5,"prompt_tokens":7,"output_tokens":8}}',
    ],
    ids=["csv", "crlf", "mark", "spaces", "jsonl", "jsonl-crlf"],
)
def test_our_formats(tmp_path: Path, content: str) -> None:
    """CSV or JSONL in seconds; byte order marks, blank lines and unknown JSON keys do no harm."""
    assert read(_file(tmp_path, content)) == (Request(0.0, 5, 6), Request(2.5, 7, 8))


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        ("a,b,c\n1,2,3\n", 1, "known header"),
        (f"{OURS}\n0,1,1\n1,2\n", 3, "2 columns"),
        (f"{OURS}\n0,1,1\n1,2,3,4\n", 3, "4 columns"),
        (f"{OURS}\n0,1,1\n\n1,0,3\n", 4, "0 prompt tokens"),
        (f"{OURS}\n0,1,-3\n", 2, "'-3'"),
        (f"{OURS}\n0,1,1.5\n", 2, "'1.5'"),
        (f"{OURS}\n0,1,1_0\n", 2, "'1_0'"),
        (f"{OURS}\n0,1,\u0663\n", 2, "number of tokens"),
        (f"{OURS}\n0,1,\n", 2, "number of tokens"),
        (f"{OURS}\n0,1,{MOST_TOKENS + 1}\n", 2, f"{MOST_TOKENS + 1} output tokens"),
        (f"{OURS}\n0,1,{'9' * 5000}\n", 2, "number of tokens"),
        (f"{OURS}\nnan,1,1\n", 2, "not a time"),
        (f"{OURS}\ninf,1,1\n", 2, "not a time"),
        (f"{OURS}\n1_0,1,1\n", 2, "time in seconds"),
        (f"{OURS}\nsoon,1,1\n", 2, "soon"),
        (f"{OURS}\n5,1,1\n4.9,1,1\n", 3, "before the request above"),
        (f'{OURS}\n"5,1,1\n', 2, "1 columns"),
        (f"{OURS}\n0,1,{'9' * 200_000}\n", 2, "field"),
        (f"{AZURE}\n2023-11-16 18:15:46,1,1\nlater,1,1\n", 3, "later"),
        (f"{AZURE}\n1.0,1,1\n", 2, "1.0"),
        ('{"at":0,"prompt_tokens":1,"output_tokens":1}\nnot JSON\n', 2, ""),
        ('{"at":0,"prompt_tokens":1}\n', 1, "output_tokens"),
        ('{"at":0,"prompt_tokens":1,"output_tokens":"7"}\n', 1, "output_tokens"),
        ('{"at":0,"prompt_tokens":1,"output_tokens":0}\n', 1, "0 output tokens"),
        ('{"at":NaN,"prompt_tokens":1,"output_tokens":1}\n', 1, ""),
        (f"{OURS}\n0,1,1\n".encode() + b"\xff,1,1\n", 3, "decode"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, content: str | bytes, line: int, reason: str) -> None:
    """With the file, the number of the line as an editor counts, and what is wrong with it."""
    path = _file(tmp_path, content)
    with pytest.raises(SpecswitchError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}, line {line}: ")
    assert reason in str(caught.value)
    assert len(str(caught.value)) < len(str(path)) + 200


@pytest.mark.parametrize("content", ["", "\n \n", f"{OURS}\n", b"\xef\xbb\xbf"])
def test_an_empty_file(tmp_path: Path, content: str | bytes) -> None:
    """Nothing in it, or a header alone: there is no trace, and the file is named."""
    path = _file(tmp_path, content)
    with pytest.raises(SpecswitchError, match="no request") as caught:
        read(path)
    assert str(path) in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """A missing file and a folder are named with the reason."""
    with pytest.raises(SpecswitchError, match=r"missing: No such file"):
        read(tmp_path / "missing")
    with pytest.raises(SpecswitchError, match="directory"):
        read(tmp_path)


def test_the_trace_that_comes_along_is_the_one_that_is_made() -> None:
    """It can be made again from its seed, to the byte, and read back."""
    assert conversation() == synthetic()


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    """To the millisecond."""
    trace = (Request(0.0, 1, 2), Request(1.25, 3, 4))
    assert read(_file(tmp_path, written(trace))) == trace


def test_the_trace_that_comes_along_is_like_the_conversations() -> None:
    """Lengths within 1 % of the means, the same medians, and counts a second that vary as much."""
    trace = conversation()
    prompts = [one.prompt_tokens for one in trace]
    replies = [one.output_tokens for one in trace]
    assert (len(trace), median(prompts), median(replies)) == (1500, 1020, 129)
    assert fmean(prompts) == pytest.approx(1155, rel=0.01)
    assert fmean(replies) == pytest.approx(211, rel=0.01)
    assert rate(trace) == pytest.approx(5.5, rel=0.02)
    counts = [0] * (int(trace[-1].at) + 1)
    for one in trace:
        counts[int(one.at)] += 1
    assert pvariance(counts) / fmean(counts) == pytest.approx(1.4, abs=0.05)
