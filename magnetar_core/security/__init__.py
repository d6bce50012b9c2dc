"""Who a client is: tokens, passwords, certificates. What it may do is the broker's."""
