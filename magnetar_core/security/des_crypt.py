"""The traditional `crypt` of Unix, by which Apache reads passwords that are neither apr1 nor anything else. No IO.

It is DES, 25 times, with a salt of 12 bits; only the first eight characters of a password count. It is here because
existing files have it, and is too weak for new ones: bcrypt is better.

Blocks are integers; bit 1 of the standard (FIPS 46-3) is the most significant one.
"""

from typing import Final

_ALPHABET: Final = b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

_IP: Final = tuple(64 - 8 * column + row for row in (-6, -4, -2, 0, -7, -5, -3, -1) for column in range(8))
_FP: Final = tuple(_IP.index(place) + 1 for place in range(1, 65))
_E: Final = tuple((4 * group + at - 1) % 32 + 1 for group in range(8) for at in range(6))
_P: Final = (
    16, 7, 20, 21, 29, 12, 28, 17, 1, 15, 23, 26, 5, 18, 31, 10,
    2, 8, 24, 14, 32, 27, 3, 9, 19, 13, 30, 6, 22, 11, 4, 25,
)  # fmt: skip
_PC1: Final = (
    57, 49, 41, 33, 25, 17, 9, 1, 58, 50, 42, 34, 26, 18,
    10, 2, 59, 51, 43, 35, 27, 19, 11, 3, 60, 52, 44, 36,
    63, 55, 47, 39, 31, 23, 15, 7, 62, 54, 46, 38, 30, 22,
    14, 6, 61, 53, 45, 37, 29, 21, 13, 5, 28, 20, 12, 4,
)  # fmt: skip
_PC2: Final = (
    14, 17, 11, 24, 1, 5, 3, 28, 15, 6, 21, 10,
    23, 19, 12, 4, 26, 8, 16, 7, 27, 20, 13, 2,
    41, 52, 31, 37, 47, 55, 30, 40, 51, 45, 33, 48,
    44, 49, 39, 56, 34, 53, 46, 42, 50, 36, 29, 32,
)  # fmt: skip
_SHIFTS: Final = (1, 1, 2, 2, 2, 2, 2, 2, 1, 2, 2, 2, 2, 2, 2, 1)
# Each box: four rows of 16, one hexadecimal digit for each entry.
_BOXES: Final = tuple(
    tuple(int(digit, 16) for digit in box)
    for box in (
        "e4d12fb83a6c59070f74e2d1a6cb953841e8d62bfc973a50fc8249175b3ea06d",
        "f18e6b34972dc05a3d47f28ec01a69b50e7ba4d158c6932fd8a13f42b67c05e9",
        "a09e63f51dc7b428d709346a285ecbf1d6498f30b12c5ae71ad069874fe3b52c",
        "7de3069a1285bc4fd8b56f03472c1ae9a690cb7df13e52843f06a1d8945bc72e",
        "2c417ab6853fd0e9eb2c47d150fa3986421bad78f9c5630eb8c71e2d6f09a453",
        "c1af92680d34e75baf427c9561de0b389ef528c3704a1db6432c95fabe17608d",
        "4b2ef08d3c975a61d0b7491ae35c2f8614bdc37eaf6805926bd814a7950fe23c",
        "d2846fb1a93e50c71fd8a374c56b0e927b419ce206adf35821e74a8dfc90356b",
    )
)
_ROUNDS: Final = 25


def des_crypt(password: bytes, salt: bytes) -> str:
    """The 13 characters of `crypt(password, salt)`. *salt* is two characters. Raises ValueError for another one."""
    if len(salt) < 2 or any(character not in _ALPHABET for character in salt[:2]):
        raise ValueError("the salt of crypt is two characters of ./0-9A-Za-z")
    salt = salt[:2]
    bits = _ALPHABET.index(salt[0]) | _ALPHABET.index(salt[1]) << 6
    keys = _keys(int.from_bytes(bytes(byte << 1 & 0xFF for byte in password[:8]).ljust(8, b"\0")))
    # Bit n of the salt exchanges the bits n and n + 24 of each expanded half, counted from its beginning.
    swapped = sum(1 << (47 - at) for at in range(12) if bits >> at & 1)
    block = 0
    for _ in range(_ROUNDS):
        block = _encrypt(block, keys, swapped)
    block <<= 2  # 66 bits are 11 characters
    text = bytes(_ALPHABET[block >> shift & 63] for shift in range(60, -1, -6))
    return (salt + text).decode("ascii")


def _permuted(value: int, size: int, places: tuple[int, ...]) -> int:
    """The bits of *value*, which has *size* of them, at *places*; the first of them is 1."""
    result = 0
    for place in places:
        result = result << 1 | value >> (size - place) & 1
    return result


def _keys(key: int) -> list[int]:
    """The 16 keys of the rounds."""
    state = _permuted(key, 64, _PC1)
    left, right = state >> 28, state & 0xFFF_FFFF
    keys = []
    for shift in _SHIFTS:
        left = (left << shift | left >> (28 - shift)) & 0xFFF_FFFF
        right = (right << shift | right >> (28 - shift)) & 0xFFF_FFFF
        keys.append(_permuted(left << 28 | right, 56, _PC2))
    return keys


def _encrypt(block: int, keys: list[int], swapped: int) -> int:
    block = _permuted(block, 64, _IP)
    left, right = block >> 32, block & 0xFFFF_FFFF
    for key in keys:
        left, right = right, left ^ _scrambled(right, key, swapped)
    return _permuted(right << 32 | left, 64, _FP)


def _scrambled(half: int, key: int, swapped: int) -> int:
    """The function f of the standard, with the salt's exchange of bits between E and the key."""
    expanded = _permuted(half, 32, _E)
    differing = (expanded ^ expanded << 24) & swapped
    expanded ^= differing | differing >> 24
    expanded ^= key
    result = 0
    for at, box in enumerate(_BOXES):
        six = expanded >> (42 - 6 * at) & 63
        result = result << 4 | box[(six & 32 | (six & 1) << 4) | six >> 1 & 15]
    return _permuted(result, 32, _P)
