"""One topic: messages go in (`publishing`), and out to subscriptions (`reading`, `dispatchers`).

`topic.py` and `subscriptions.py` do the IO; most of the rest decides without it. `ports.py` names what the deciding
parts use of their shells. `clients` are the producers and consumers that are attached, `rates` what they may do a
second, `compaction` the last message of each key. `non_persistent` topics store nothing.
"""
