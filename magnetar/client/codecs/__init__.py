"""What the values of messages are: what a program declares (`declared`), and the codec and schema that follow."""
