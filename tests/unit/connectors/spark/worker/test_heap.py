"""What is kept from task to task of a Python worker, in processes of their own: what is frozen stays so."""

import subprocess
import sys

from connectors.spark.worker.heap import SETTLED_AFTER


def printed(program: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50)
    return done.stdout.split()


def test_what_was_imported_is_not_looked_at_after_a_task() -> None:
    program = """
import gc
import connectors.spark.task.reader
from connectors.spark.worker.heap import settle
gc.collect()
before = len(gc.get_objects())
settle()
print(before, len(gc.get_objects()))
"""
    before, after = map(int, printed(program))
    assert before > 10_000
    assert after < 100


def test_only_the_first_tasks_of_a_process_leave_something_out() -> None:
    program = f"""
from connectors.spark.worker.heap import settle
print(*(settle() for _ in range({SETTLED_AFTER + 2})))
"""
    assert printed(program) == ["True"] * SETTLED_AFTER + ["False"] * 2


def test_a_worker_that_is_forked_counts_its_own_tasks() -> None:
    program = f"""
import os
from connectors.spark.worker.heap import settle
for _ in range({SETTLED_AFTER}):
    settle()
print(settle(), flush=True)
if not (child := os.fork()):
    print(settle(), flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""
    assert printed(program) == ["False", "True"]


def test_cycles_of_later_tasks_are_collected() -> None:
    program = f"""
import gc, weakref
from connectors.spark.worker.heap import settle
class Node: pass
seen = []
for _ in range({SETTLED_AFTER + 1}):
    settle()
    node = Node()
    node.itself = node
    seen.append(weakref.ref(node))
    del node
    gc.collect()
print(*(ref() is None for ref in seen))
"""
    assert set(printed(program)) == {"True"}
