"""Step labels: splitting, prefixes, schedules of completer calls, the ledger and label rules."""
