"""A soak of the topic API: threads, tasks, cancels, forks, and closes at any moment.

__main__   a standalone, and a process of the program beside it; ends what hangs, and shows where
program    round after round; what is left behind after each
rounds     what the threads, tasks and children of a round do, drawn from the seed
"""
