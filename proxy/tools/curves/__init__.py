"""From measured cells to curves, a crossover and a verdict: mathematics only.

cells       what was measured at one concurrency, and what is refused of it
squares     least squares with no coefficient below nought
fit         cells to a curve
pairing     two curves: crossings, and how sure they are
verdict     what may be said of them, and which cells need more
crossover   all of it in order: N*, λ*, the verdict
"""
