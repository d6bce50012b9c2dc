"""Connections of a Python worker to its JVM, in processes of their own: what is set, and when."""

import subprocess
import sys

CONNECTED = """
import gc, os, socket
from connectors.spark.worker.socket import answer_at_once

def connected():
    with socket.create_server(("127.0.0.1", 0)) as server:
        jvm = socket.create_connection(server.getsockname())
        return jvm, server.accept()[0]

def is_set(connection, option):
    return bool(connection.getsockopt(socket.IPPROTO_TCP, option))

def answers_late(jvm, worker):
    "Whether the worker's kernel keeps acknowledgements back: after data were sent in answer to others."
    for _ in range(100):
        jvm.send(b"command")
        worker.recv(7)
        worker.send(b"answer")
        jvm.recv(6)
        if not is_set(worker, socket.TCP_QUICKACK):
            return True
    return False

gc.disable()
jvm, worker = connected()
"""


def printed(program: str) -> list[str]:
    command = [sys.executable, "-c", CONNECTED + program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=50)
    return done.stdout.split()


def test_a_worker_sends_at_once() -> None:
    found = printed("""
print(is_set(worker, socket.TCP_NODELAY))
answer_at_once()
print(is_set(worker, socket.TCP_NODELAY))
""")
    assert found == ["False", "True"]


def test_a_worker_acknowledges_at_once_when_garbage_was_collected_after_a_task() -> None:
    found = printed("""
answer_at_once()
for _ in range(2):
    print(answers_late(jvm, worker))
    gc.collect(1)
    print(is_set(worker, socket.TCP_QUICKACK))
    gc.collect()
    print(is_set(worker, socket.TCP_QUICKACK))
""")
    assert found == ["True", "False", "True"] * 2


def test_connections_of_a_later_task_are_not_sparks() -> None:
    found = printed("""
answer_at_once()
other, mine = connected()
answer_at_once()
print(is_set(mine, socket.TCP_NODELAY), len(gc.callbacks))
""")
    assert found == ["False", "1"]


def test_a_connection_ends_when_its_owner_closes_it() -> None:
    found = printed("""
answer_at_once()
worker.close()
print(jvm.recv(1))
gc.collect()
open_file = open(os.devnull)
gc.collect()
print(open_file.read() == "")
""")
    assert found == ["b''", "True"]


def test_a_worker_that_is_forked_sets_its_own() -> None:
    found = printed("""
answer_at_once()
if not (child := os.fork()):
    jvm, worker = connected()
    answer_at_once()
    print(is_set(worker, socket.TCP_NODELAY), answers_late(jvm, worker), flush=True)
    gc.collect()
    print(is_set(worker, socket.TCP_QUICKACK), len(gc.callbacks), flush=True)
    os._exit(0)
os.waitpid(child, 0)
""")
    assert found == ["True", "True", "True", "1"]


def test_other_kinds_of_sockets_are_left_alone() -> None:
    found = printed("""
jvm.close(), worker.close()
one, other = socket.socketpair()
answer_at_once()
one.send(b"x")
print(other.recv(1), len(gc.callbacks))
gc.collect()
""")
    assert found == ["b'x'", "0"]


def test_no_copy_of_a_file_or_of_a_pipe_is_left() -> None:
    """Who reads the other end of a pipe would wait for its end for ever."""
    found = printed("""
ours, theirs = os.pipe()
before = len(os.listdir("/proc/self/fd"))
answer_at_once()
gc.collect()
print(len(os.listdir("/proc/self/fd")) - before)
os.close(theirs)
print(os.read(ours, 1))
""")
    assert found == ["0", "b''"]
