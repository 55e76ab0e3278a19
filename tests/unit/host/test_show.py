"""Output at 80 columns, and signs of life."""

from __future__ import annotations

import pytest

from host import show


def test_long_text_is_wrapped_beside_its_label() -> None:
    lines = show.fill("mode", "word " * 40).splitlines()
    assert lines[0].startswith("mode      word")
    assert all(line.startswith(" " * 10 + "word") for line in lines[1:])
    assert max(map(len, lines)) <= 80


def test_what_is_to_be_pasted_is_never_broken() -> None:
    url = "http://127.0.0.1:8888/lab?token=" + "0" * 80
    assert show.fill("jupyter", url) == f"jupyter   {url}"


def test_elsewhere_than_on_a_terminal_a_wait_is_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with show.ticking("wait") as ticker:
        for second in range(12):
            ticker.tick(second, f"round\n{second}")
    assert capsys.readouterr().out == "wait         5 s  round 5\nwait        10 s  round 10\n"
