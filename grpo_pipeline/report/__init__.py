"""What a person looks at: terminal tables, the HTML page and plots."""
