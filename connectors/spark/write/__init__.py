"""From rows to messages: at least once, or exactly once."""
