"""How fast specswitch and its peers pass bytes on, in numbers.

    python -m bench.speed --help

`__main__` runs works, interleaved over targets and rounds, writes each run and prints tables. A
work is what clients do (`works`), a target what they ask (`targets`), a run one work of one target.

    tools/       the emulated servers and the load, in C: they must cost less than what they measure
    conf/        the peers' configurations; plain.py is the proxy that most people write first
    stage        starts the emulator and the targets, each on its core, and ends them
    loading      runs the load
    measuring    a run: CPU time, memory and what the load says, as figures
    leaving      how soon an engine learns that its client has left
    scraping     metrics, read each second; how late specswitch's loop was
    rounds       the order of runs; who was disturbed does it again
    results      raw results, JSON lines
    intervals    medians of ratios with their intervals
    table, columns    Markdown
    smoke        the short form, with bounds, that is part of the checks
    machine, processes, asking    /proc, cores; gcc, ports, starting and ending; a little HTTP

The peers are installed by bench/reliability/peers.py. bench/README.md says how to read the result.
"""
