"""`specswitch calibrate`: measure both servers, and find where speculation stops to pay.

plan               which cells, and how long they take
servers, prefill   what the servers are; how long prompts take
loop, cells        a closed loop of requests; what one cell amounts to
steps, state       one step after the other, and how far it has come
conclusion         from cells to the calibration file
report             for people
handover           the file read by a specswitch that runs
run                all of it in order
"""
