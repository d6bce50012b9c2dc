"""A cluster under virtual time, in one thread: loop, network, disks and metadata server of a simulation.

Brokers, bookies, auto-recovery and clients are the real ones. What is simulated is what they stand on:

    loop       time goes on when everything waits; processes that stop dead, or stand still
    network    connections with delays, that break, that are cut in one direction
    disk       files that lose what was not synced
    metadata   a metadata server with sessions, late watches, answers that are lost
"""
