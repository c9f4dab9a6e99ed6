"""Measurements of specswitch against its peers; each folder has one kind and says how to run it."""
