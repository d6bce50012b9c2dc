"""Topics that store nothing: a message goes to who is there, or is dropped and counted."""
