"""Models on disk: loading, saving, reward heads, and the embedded tiny model's recipe."""
