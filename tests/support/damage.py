"""Damages bytes at random."""

import random
from collections.abc import Sequence


def damaged(rng: random.Random, data: bytes, times: Sequence[int] = (1, 1, 2, 8)) -> bytes:
    """*data* with bits flipped, bytes removed or inserted, or another end; as often as a number drawn from *times*."""
    body = bytearray(data)
    for _ in range(rng.choice(times)):
        kind, at = rng.random(), rng.randrange(len(body) + 1)
        if kind < 0.4 and at < len(body):
            body[at] ^= 1 << rng.randrange(8)
        elif kind < 0.6:
            del body[at : at + rng.randrange(1, 12)]
        elif kind < 0.8:
            body[at:at] = rng.randbytes(rng.randrange(1, 12))
        else:
            body[at:] = rng.randbytes(rng.randrange(40))
    return bytes(body)
