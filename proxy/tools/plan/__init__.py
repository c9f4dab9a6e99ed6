"""`specswitch plan`: does a pair of servers fit a GPU, and how is its memory split between them?

`sizes` has the formulas of one model, `split` those of two servers on one GPU, as SGLang 0.5.23
computes them. Nothing here asks a server or a GPU: all of it is arithmetic on what is told.
"""
