"""Text generation: one protocol, several engines."""
