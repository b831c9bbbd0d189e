"""Small pictures of each kind that models take."""

from __future__ import annotations

from io import BytesIO

from PIL import Image


def make_picture(kind: str) -> bytes:
    """Make a picture of one pixel."""
    file = BytesIO()
    Image.new("RGB", (1, 1)).save(file, kind)
    return file.getvalue()


PICTURES = {kind: make_picture(kind) for kind in ("png", "jpeg", "webp", "gif")}
GIF = PICTURES["gif"]
