"""A GPU pair without a GPU: the cost model, two engines on one clock, and their HTTP servers."""
