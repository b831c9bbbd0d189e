"""The avatar of an agent: drawn from its name, or read from a file."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest

from spade_coreason.config.loader import load_settings
from spade_coreason.domain.avatar import draw_avatar, read_avatar
from spade_coreason.exceptions import ConfigError


def test_the_same_name_has_the_same_picture_and_another_name_another() -> None:
    assert draw_avatar("echo") == draw_avatar("echo")
    assert len({draw_avatar(f"agent {number}").hash for number in range(200)}) == 200
    assert draw_avatar("\ud800").media_type == "image/png"


def test_a_drawn_picture_is_a_whole_small_png() -> None:
    data = draw_avatar("echo").data
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert len(data) < 500
    offset, chunks = 8, {}
    while offset < len(data):
        (length,) = struct.unpack(">I", data[offset : offset + 4])
        kind, content = data[offset + 4 : offset + 8], data[offset + 8 : offset + 8 + length]
        assert struct.unpack(">I", data[offset + 8 + length : offset + 12 + length]) == (zlib.crc32(kind + content),)
        chunks[kind] = content
        offset += 12 + length
    assert list(chunks) == [b"IHDR", b"PLTE", b"IDAT", b"IEND"]
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    rows = zlib.decompress(chunks[b"IDAT"])
    assert len(rows) == height * (1 + width // 8)
    assert any(rows)
    for y in range(height):  # it is mirrored
        bits = f"{int.from_bytes(rows[y * 13 + 1 : y * 13 + 13], 'big'):096b}"
        assert bits == bits[::-1]


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (draw_avatar("x").data, "image/png"),
        (b"\xff\xd8\xff\xe0 and so on", "image/jpeg"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
    ],
)
def test_a_picture_is_known_by_its_content(content: bytes, kind: str, tmp_path: Path) -> None:
    (tmp_path / "face").write_bytes(content)
    assert read_avatar(tmp_path / "face") == (content, kind)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "no such file: {}; correct the name, or remove the key"),
        (b"<svg/>", "{} is not a PNG, JPEG or WebP picture; convert it"),
        (b"GIF89a", "{} is not a PNG, JPEG or WebP picture; convert it"),
        (b"\xff\xd8\xff" * 30_000, "{} is larger than 40 KiB; make the picture smaller (128 x 128 is enough)"),
    ],
)
def test_an_unusable_file_is_one_clear_line(content: bytes | None, problem: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "face.png").write_bytes(content)
    (tmp_path / "platform.yaml").write_text('agents: [{jid: echo@localhost, agent: "a:B", avatar: face.png}]')
    with pytest.raises(ConfigError) as caught:
        load_settings(Path("platform.yaml"), tmp_path, {})
    assert str(caught.value) == f"platform.yaml: agents[0].avatar: {problem.format(tmp_path / 'face.png')}"
