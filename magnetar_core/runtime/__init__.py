"""What every server needs of its machine: clock, files, tasks, settings, metrics."""
