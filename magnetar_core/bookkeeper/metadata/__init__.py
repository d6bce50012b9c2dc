"""What the metadata store holds of BookKeeper: ledgers, bookies, marks of auto-recovery, reports of damage."""
