"""The six training methods, one file each, over one kind of token batch."""
