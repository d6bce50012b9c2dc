"""The topic API as protocol buffers, which broker and client share."""
