"""Lines of a report for people: a word at the margin, text that wraps under itself, commands that stay whole."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from torchtap.selftest.status import Status

# Colour and weight; the word itself is always there, so nothing is lost without colour.
STYLES = {
    Status.PASS: "green",
    Status.WARN: "yellow",
    Status.FAIL: "bold red",
    Status.UNKNOWN: "bold magenta",
    Status.SKIP: "dim",
}
MARGIN = 8  # "unknown" and a blank
DEFAULT_WIDTH = 80  # where the terminal says 0, as some serial lines do
LEAST_WIDTH = 40  # narrower, the terminal wraps


def fit(console: Console) -> None:
    """Give the console a width that a report can be drawn at."""
    console.width = max(console.width or DEFAULT_WIDTH, LEAST_WIDTH)


def print_lines(console: Console, lines: Iterable[Text]) -> None:
    """Lines with a hanging margin, wrapped here and not by rich, so that commands stay whole and can be pasted."""
    for each in lines:
        if len(each) <= console.width or each.plain.startswith(" " * MARGIN):
            console.print(each, soft_wrap=True)
            continue
        head, body = each[:MARGIN], each.plain[MARGIN:]
        wrapped = textwrap.wrap(
            body, console.width - MARGIN, break_long_words=False, break_on_hyphens=False, drop_whitespace=True
        )
        console.print(head.append(each[MARGIN : MARGIN + len(wrapped[0])]), soft_wrap=True)
        for rest in wrapped[1:]:
            console.print(Text(" " * MARGIN + rest), soft_wrap=True)


def line(word: str, style: str, *parts: str | tuple[str, str]) -> Text:
    """One line: a word at the margin in its style, then parts, each a text or a (text, style)."""
    return Text.assemble((word.ljust(MARGIN), style), *parts)
