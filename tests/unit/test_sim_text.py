"""The simulated engines say the same for the same prompt, and about as much as people are told."""

from statistics import mean

import pytest

from proxy.sim.text import natural_length, prompt_tokens, sample_seed, seed_of, text, token_ids


def test_the_text_depends_on_the_prompt_alone() -> None:
    """The same prompt gives the same words, another prompt others."""
    assert text(seed_of("hello"), 0, 20) == text(seed_of("hello"), 0, 20)
    assert text(seed_of("hello"), 0, 20) != text(seed_of("hello!"), 0, 20)


def test_pieces_join_to_the_whole() -> None:
    """However a text is cut, its pieces are the text, with one word for each token."""
    seed = seed_of("hello")
    whole = text(seed, 0, 50)
    assert text(seed, 0, 7) + text(seed, 7, 7) + text(seed, 7, 50) == whole
    assert len(whole.split()) == len(token_ids(seed, 50)) == 50


def test_samples_of_one_prompt_differ() -> None:
    """The first of several replies is the reply; the others are not."""
    seed = seed_of("hello")
    seeds = [sample_seed(seed, sample) for sample in range(3)]
    assert seeds[0] == seed
    assert len(set(seeds)) == 3


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [("", 1), ("hi", 1), ("x" * 400, 100), ([5, 6, 7], 3), ([], 1), ("\ud800" * 4, 3)],
)
def test_prompt_tokens(prompt: str | list[int], tokens: int) -> None:
    """Four bytes to a token, tokens as given, at least one; odd text is text."""
    assert prompt_tokens(prompt) == tokens
    assert seed_of(prompt) >= 0


def test_natural_lengths() -> None:
    """Replies end by themselves after 16 to 511 tokens, 263 in the mean."""
    lengths = [natural_length(seed_of(f"prompt {number}")) for number in range(2000)]
    assert min(lengths) >= 16
    assert max(lengths) <= 511
    assert mean(lengths) == pytest.approx(263, abs=15)
