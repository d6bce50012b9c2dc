"""Looking into a running cluster from outside: ledgers, bookies, brokers, and what `doctor` finds wrong."""
