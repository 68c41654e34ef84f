"""The training loop: batching, log-probabilities, optimizer, checkpoints and monitors."""
