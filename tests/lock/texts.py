"""Texts that mean harm to whoever reads, parses or prints them."""

from __future__ import annotations

MEGA = 10_000_000

NASTY = [
    "<b>&\"'\\ \x00\x1b[31m\u202e line\nbreak\r\n\ttab  end \u00fc\U0001f512 ",
    "{a}b",
    "}{",
    "a:b::c",
    "a\nb event=lost name=x",
    "a\r\nSet-Cookie: x=y",
    "a\0b",
    "\u202egpj.exe",
    "\u200f\u2066",
    "\ud800",
    "\x1b[2J\x1b]0;owned\x07",
    "\u2028\u2029\x85",
    "<script>alert(1)</script>",
    "' OR 1=1 --",
    "%41%2F",
    "..",
    "\U0001d56c\U0010ffff",
]
ENCODABLE = [text for text in NASTY if "\ud800" not in text]
