"""A GPU pair without a GPU: the cost model, two engines on one clock, and their HTTP servers.

Bottom to top; only `server` does I/O, and `traces` reads a file:

    physics                      seconds for a step, by what is in the batch; profiles; N*
    engine, gpu                  continuous batching on a shared GPU, step by step in virtual time
    flow, fluid                  the same as a flow of tokens, for long stretches of virtual time
    lengths, arrivals            how long requests are and when they come
    traces, workloads            requests from a file, and the fourteen workloads by name
    openloop, knowledge          mean times in an open loop; what a perfect calibration would know
    rivals, switching, policies  the policies that are compared
    run, results                 one run and what it amounts to
    compare, measures            policies side by side, and what ours has to hold
    text, asks, generation       what a request asks for, and how far it has got
    replies, pages, wire         SGLang's shapes: replies, /server_info and the like, HTTP
    clockwork                    the GPU in the time of an event loop
    options, desk, server        the pair as two HTTP servers
"""
