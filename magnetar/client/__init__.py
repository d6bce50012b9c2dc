"""The topic client: producers, consumers and readers over the topic API, blocking and asynchronous."""
