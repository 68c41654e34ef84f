"""What a person asks of a run in the terminal: inspect, lineage, verify, gc, diff."""
