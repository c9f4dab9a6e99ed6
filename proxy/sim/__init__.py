"""A GPU pair without a GPU: the cost model, two engines on one clock, and their HTTP servers.

Bottom to top; only `server` does I/O:

    physics                 seconds for a step, by what is in the batch; profiles; the crossover
    engine, gpu             continuous batching on a shared GPU, in virtual time
    text, asks, generation  what a request asks for, and how far it has got
    replies, pages, wire    SGLang's shapes: replies, /server_info and the like, HTTP
    clockwork               the GPU in the time of an event loop
    options, desk, server   the pair as two HTTP servers
"""
