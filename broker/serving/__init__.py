"""What this broker serves now.

Topics are opened and closed (`opening`), made (`creation`) and deleted (`deleting`); they have policies in force
(`in_force`) and work that is done again and again (`periodic`). Beside them: which topics are open, lists of topics,
schemas, storage, and lookups.
"""
