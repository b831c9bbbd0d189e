"""A QR code on a terminal, drawn with half blocks: one character shows two modules, one above the other."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from ...exceptions import CoReasonError

if TYPE_CHECKING:
    import segno

QUIET_ZONE = 4
"""The modules of the light margin, without which scanners do not find the code (ISO/IEC 18004)."""
# White blocks on black, whatever the colours of the terminal are. A theme changes the first 16 colours, and not these.
_START, _END = "\x1b[38;5;231;48;5;16m", "\x1b[0m"


def build_qr_code(text: str) -> segno.QRCode:
    """Build the QR code of a text. Raise CoReasonError if the text is too long for one."""
    import segno

    try:
        return segno.make_qr(text, error="m")
    except segno.DataOverflowError as error:
        raise CoReasonError(f"{len(text)} characters are too many for a QR code; choose a shorter name") from error


def draw_qr_code(code: segno.QRCode, *, has_colours: bool) -> list[str]:
    """Draw a QR code as lines of text, each as wide as the code is high.

    The characters draw the light modules. Without colours that is right on a terminal with light text on a dark background.
    """
    drawn = io.StringIO()
    code.terminal(drawn, border=QUIET_ZONE, compact=True)
    lines = drawn.getvalue().splitlines()
    return [f"{_START}{line}{_END}" for line in lines] if has_colours else lines
