"""Which consumer gets the next entry: Exclusive, Failover, Shared, Key_Shared. No IO and no clock."""
