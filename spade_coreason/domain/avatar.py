"""The picture of an agent: a small file, or one that is drawn from its name."""

from __future__ import annotations

import colorsys
import hashlib
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

MOST_BYTES = 40 * 1024
"""Base64 makes a third more of it, and it goes in one stanza, which has 64 KiB by default (`limits.stanza_bytes`)."""

_CELLS = 5
_CELL = 16
_MARGIN = 8
_SIZE = _CELLS * _CELL + 2 * _MARGIN
_BACKGROUND = (240, 240, 240)


class Avatar(NamedTuple):
    """A picture. `type` is its media type."""

    data: bytes
    type: str

    @property
    def hash(self) -> str:
        """By which clients know it (SHA-1; XEP-0084, XEP-0153)."""
        return hashlib.sha1(self.data, usedforsecurity=False).hexdigest()


def read_avatar(path: Path) -> Avatar:
    """The picture in a file: PNG, JPEG or WebP. ValueError says what is wrong with it, and the remedy."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except FileNotFoundError as error:
        raise ValueError(f"there is no file {path}; correct the name, or leave it out") from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}; correct the name or its rights") from error
    if len(data) > MOST_BYTES:
        raise ValueError(f"{path} is larger than {MOST_BYTES // 1024} KiB; make the picture smaller (128 x 128 is enough)")
    kind = _type(data)
    if kind is None:
        raise ValueError(f"{path} is no PNG, JPEG or WebP picture; convert it to one")
    return Avatar(data, kind)


def _type(data: bytes) -> str | None:
    """By what a file begins with: its name may say anything."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "image/webp"
    return None


def drawn(name: str) -> Avatar:
    """The same picture for the same name, and another for another one: a mirrored pattern of 5 x 5 in a colour of its own."""
    digest = hashlib.sha256(name.encode("utf-8", "replace")).digest()
    red, green, blue = colorsys.hls_to_rgb(int.from_bytes(digest[:2], "big") / 65_536, 0.45, 0.55)
    colour = (round(red * 255), round(green * 255), round(blue * 255))
    half = (_CELLS + 1) // 2
    # A name whose digest sets next to nothing would get an empty picture: the middle is always there.
    cells = [
        [(row, column) == (2, 2) or digest[2 + row * half + column] & 1 for column in range(half)] for row in range(_CELLS)
    ]
    return Avatar(_png([row + row[-2::-1] for row in cells], colour), "image/png")


def _png(cells: list[list[int]], colour: tuple[int, int, int]) -> bytes:
    """A PNG of two colours, one bit a pixel (PNG, 11.2)."""
    rows = bytearray()
    for y in range(_SIZE):
        bits = 0
        for x in range(_SIZE):
            row, column = (y - _MARGIN) // _CELL, (x - _MARGIN) // _CELL
            is_inside = 0 <= row < _CELLS and 0 <= column < _CELLS
            bits = bits << 1 | (is_inside and bool(cells[row][column]))
        rows += b"\0" + bits.to_bytes(_SIZE // 8, "big")  # no filter
    header = struct.pack(">IIBBBBB", _SIZE, _SIZE, 1, 3, 0, 0, 0)
    palette = bytes((*_BACKGROUND, *colour))
    chunks = ((b"IHDR", header), (b"PLTE", palette), (b"IDAT", zlib.compress(bytes(rows), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
