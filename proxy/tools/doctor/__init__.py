"""`specswitch doctor`: are these two servers a good pair?

server_info, fields, model_files   what one server says of itself
pair, spec, server, memory         pure checks of two readings
live                               what a few requests show
diagnosis                          findings and their report
examine                            all of it in order
"""
