"""Import and export of other projects' forms, and data cards."""
