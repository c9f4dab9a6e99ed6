"""What the controller does for clients, measured over HTTP on simulated GPUs.

    python -m bench.live --help

`__main__` runs rounds of all measures and prints medians beside their bounds. A measure is one
function that starts what it needs and returns `finding.Finding`s:

    low          at 5 and 10 % of capacity: as fast as always-spec?
    saturation   64 in flight and more: as much as always-base, and how much more than always-spec?
    step         from 5 to 80 % and back: switched in time, without a stall, without flapping?

`pairs` starts simulated pairs and specswitch, each as a process, with a calibration that knows the
profile; `clients` asks. Every endpoint has a simulated GPU of its own, so none disturbs another.
README.md says how to read the result.
"""
