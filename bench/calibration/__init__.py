"""How often the live `calibrate` is right, on simulated pairs over HTTP.

    python -m bench.calibration --help

    profiles   pairs made for one verdict each, beside those of the simulator
    pair       one simulated pair as a process of its own
    runs       one calibration of one pair, by the command as an operator types it
    __main__   many seeds, each verdict, a table

What calibration makes of synthetic cells, which takes seconds and not hours, is in
tests/simulation/test_calibration_seeds.py.
"""
