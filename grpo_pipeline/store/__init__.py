"""Artifacts: folders of Parquet shards with a manifest, found again by fingerprint."""
