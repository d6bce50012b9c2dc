"""Events about bookies for other programs: which program wants which, and their delivery until it is confirmed."""
