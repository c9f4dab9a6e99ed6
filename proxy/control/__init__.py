"""Everything that is not a request: admin listener, probes, metrics, logs."""
