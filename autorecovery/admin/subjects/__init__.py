"""The calls of the management interface, one module for each subject."""
