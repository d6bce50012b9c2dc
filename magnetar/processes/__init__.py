"""Server processes: how a bookie, a broker, auto-recovery, a standalone and a cluster are put together and run."""
