"""Events about bookies for the programs of others: who wants which, and their delivery until it is confirmed."""
