"""What `magnetar.Client` makes: the asynchronous objects, for programs without an event loop."""
