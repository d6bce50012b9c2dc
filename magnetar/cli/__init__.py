"""The command `magnetar`: one module for each noun. Each imports what it needs when it runs."""
