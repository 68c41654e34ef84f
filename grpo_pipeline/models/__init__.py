"""Models: reward heads, loading and saving, and the recipe of the embedded model."""
