"""What a person must mend before anything can be measured."""


class BenchError(Exception):
    """One sentence: what is missing or wrong, and what to do."""
