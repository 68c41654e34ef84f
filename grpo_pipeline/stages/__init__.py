"""Stages on the store: each opens its input artifacts, calls the library, and writes one artifact.

They are what Prefect tasks wrap; called by themselves they give the same artifacts.
A stage whose artifact exists is skipped; a killed one goes on from its finished shards.
"""
