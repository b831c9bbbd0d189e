"""The picture of an agent: a small file, or a pattern drawn from its name."""

from __future__ import annotations

import colorsys
import hashlib
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

MAX_AVATAR_BYTES = 40 * 1024
"""The largest picture. Base64 adds a third, and it must fit one stanza of 64 KiB by default (`limits.stanza_bytes`)."""

_SIGNATURES = ((b"\x89PNG\r\n\x1a\n", "png"), (b"\xff\xd8\xff", "jpeg"), (b"GIF87a", "gif"), (b"GIF89a", "gif"))
_CELLS = 5
_CELL_PX = 16
_MARGIN_PX = 8
_SIZE_PX = _CELLS * _CELL_PX + 2 * _MARGIN_PX
_BACKGROUND = (240, 240, 240)


class Avatar(NamedTuple):
    """A picture: its bytes and its media type."""

    data: bytes
    media_type: str

    @property
    def hash(self) -> str:
        """The hash by which clients identify the picture (SHA-1 in hex; XEP-0084, XEP-0153)."""
        return hashlib.sha1(self.data, usedforsecurity=False).hexdigest()


def read_avatar(path: Path) -> Avatar:
    """Read a picture from a file: PNG, JPEG or WebP. Raise ValueError with the mistake and the remedy."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_AVATAR_BYTES + 1)
    except FileNotFoundError as error:
        raise ValueError(f"no such file: {path}; correct the name, or remove the key") from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}; correct the name or the permissions") from error
    if len(data) > MAX_AVATAR_BYTES:
        raise ValueError(
            f"{path} is larger than {MAX_AVATAR_BYTES // 1024} KiB; make the picture smaller (128 x 128 is enough)"
        )
    media_type = recognise_picture(data)
    if media_type in (None, "image/gif"):
        raise ValueError(f"{path} is not a PNG, JPEG or WebP picture; convert it")
    return Avatar(data, media_type)


def recognise_picture(data: bytes) -> str | None:
    """Return the media type of a PNG, JPEG, WebP or GIF by its first bytes, because its name may be wrong. None for others."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((f"image/{kind}" for signature, kind in _SIGNATURES if data.startswith(signature)), None)


def draw_avatar(name: str) -> Avatar:
    """Draw a picture from a name: a mirrored pattern of 5 x 5 cells in one colour, always the same for the same name."""
    digest = hashlib.sha256(name.encode("utf-8", "replace")).digest()
    red, green, blue = colorsys.hls_to_rgb(int.from_bytes(digest[:2], "big") / 65_536, 0.45, 0.55)
    colour = (round(red * 255), round(green * 255), round(blue * 255))
    half = (_CELLS + 1) // 2
    # A digest with few bits set would give an empty picture, so the middle cell is always filled.
    cells = [
        [(row, column) == (2, 2) or digest[2 + row * half + column] & 1 for column in range(half)] for row in range(_CELLS)
    ]
    return Avatar(_encode_png([row + row[-2::-1] for row in cells], colour), "image/png")


def _encode_png(cells: list[list[int]], colour: tuple[int, int, int]) -> bytes:
    """Encode a PNG of two colours with one bit a pixel (PNG, 11.2)."""
    side = bytes(_MARGIN_PX // 8)
    margin = bytes((1 + _SIZE_PX // 8) * _MARGIN_PX)
    rows = margin  # each begins with 0: no filter
    for row in cells:
        pixels = b"".join((b"\xff" if is_filled else b"\0") * (_CELL_PX // 8) for is_filled in row)
        rows += (b"\0" + side + pixels + side) * _CELL_PX
    rows += margin
    header = struct.pack(">IIBBBBB", _SIZE_PX, _SIZE_PX, 1, 3, 0, 0, 0)
    palette = bytes((*_BACKGROUND, *colour))
    chunks = ((b"IHDR", header), (b"PLTE", palette), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_encode_chunk(kind, data) for kind, data in chunks)


def _encode_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
