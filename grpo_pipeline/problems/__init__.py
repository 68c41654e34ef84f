"""Problems: where they come from, what identifies one, and how one is shown to a model."""
