"""`specswitch simulate`: policies side by side in virtual time; the work is in `proxy/sim`.

run      what is asked for, and its progress
tables   figures as tables, as JSON, as a page
"""
