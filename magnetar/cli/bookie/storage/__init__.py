"""`magnetar bookie …`: commands about what a bookie has on its disks."""
