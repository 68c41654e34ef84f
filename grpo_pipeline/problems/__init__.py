"""Problems: readers, the synthetic generator with its exact oracle, split and decontamination."""
