"""`specswitch bench`: open-loop load on running endpoints, side by side.

plan                 endpoints, options, what is sent when
load                 sends without waiting for answers
objective            percentiles, goodput, ratios
watching             what specswitch itself says meanwhile
standing, report     figures as a table, as JSON, as a page
run                  all of it in order
"""
