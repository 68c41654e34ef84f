"""What a person looks at: tables in the terminal, and a run as one page for a browser."""
