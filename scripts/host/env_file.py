"""`.env`: read as Compose reads it, written without touching a byte of the user's own lines.

make owns one block between two marked lines, and nothing else.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from host.show import Problem

BEGIN = "# >>> written by make: it rewrites the lines down to <<< and no others"
END = "# <<<"
KEY = re.compile(r"[ \t]*(?:export[ \t]+)?([^=:#\s]*)[ \t]*([=:])?[ \t]*(.*)", re.DOTALL)
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\[\]-]*")
REFERENCE = re.compile(
    r"\\\$|\$(?:(?P<bare>[A-Za-z_]\w*)|\{(?P<name>[A-Za-z_]\w*)(?:(?P<how>:?[-+?])(?P<word>[^}]*))?\})"
)
ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\"}


@dataclass(frozen=True, slots=True)
class EnvFile:
    """A parsed `.env`: the user's variables as name → (value, line number), and make's own."""

    user: Mapping[str, tuple[str, int]]
    own: Mapping[str, str]


def broken(name: str, line: int, why: str) -> Problem:
    return Problem(
        f"{name} line {line}: {why}",
        "Nothing was changed. A line is NAME=value, or NAME='value with $ and spaces'",
    )


def load(path: Path, environ: Mapping[str, str]) -> EnvFile:
    """Read `.env`; an absent one is empty. Raises `Problem` naming the line that cannot be read."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return EnvFile({}, {})
    except OSError as error:
        raise Problem(f"{path.name} cannot be read: {error.strerror}") from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise broken(path.name, line, f"byte 0x{raw[error.start]:02x} is not UTF-8") from None
    user, own = split(text, path.name)
    mine = {key: value for key, (value, _) in parse(own, path.name, {}).items()}
    return EnvFile(parse(user, path.name, environ), mine)


def split(text: str, name: str) -> tuple[str, str]:
    """The user's part and make's part, each as long as the whole in lines, so that line numbers hold."""
    lines = lines_of(text)
    starts = [number for number, line in enumerate(lines) if line.rstrip() == BEGIN]
    if not starts:
        return text, ""
    begin = starts[0]
    ends = [number for number, line in enumerate(lines) if number > begin and line.rstrip() == END]
    if not ends or len(starts) > 1:
        why = (
            f"the block that make writes has no end line {END!r}"
            if not ends
            else "make's block is there twice"
        )
        raise broken(name, starts[-1] + 1, f"{why}. Remove it; make writes it anew")
    end = ends[0] + 1
    blank = ["\n"] * (end - begin)
    return "".join(lines[:begin] + blank + lines[end:]), "".join(["\n"] * begin + lines[begin:end])


def parse(text: str, name: str, environ: Mapping[str, str]) -> dict[str, tuple[str, int]]:
    """The variables of a `.env` text, in Compose's dialect: quotes, `export`, comments, ${NAME:-default}.

    >>> parse("export A=1 # one\\nB='x $A'\\nC=\\"y ${A:-2}\\"\\n", ".env", {})
    {'A': ('1', 1), 'B': ('x $A', 2), 'C': ('y 1', 3)}
    """
    found: dict[str, tuple[str, int]] = {}
    lines = lines_of(text)
    number = 0
    while number < len(lines):
        start, line = number, lines[number]
        number += 1
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = KEY.fullmatch(line.rstrip("\r\n"))
        key, separator, rest = match.groups() if match else ("", None, "")
        if not separator:
            if rest.strip() or not NAME.fullmatch(key):
                before, equals, _ = line.partition("=")
                why = f"{clip(before)!r} is no name for a variable" if equals else f"no '=' in {clip(line)!r}"
                raise broken(name, start + 1, why)
            continue  # a bare NAME: whatever the environment holds
        if not NAME.fullmatch(key):
            raise broken(name, start + 1, f"{clip(key)!r} is no name for a variable")
        if rest[:1] in {'"', "'"}:
            quote, body = rest[0], rest[1:]
            while (end := closing(body, quote)) is None:  # a quoted value may go on over several lines
                if number == len(lines):
                    raise broken(name, start + 1, f"{key} begins with {quote} and has no closing one")
                body += ("\n" if not body.endswith("\n") else "") + lines[number].rstrip("\r\n")
                number += 1
            tail = body[end + 1 :].strip()
            if tail and not tail.startswith("#"):
                raise broken(name, start + 1, f"{key}: something follows the closing {quote}")
            value = body[:end]
            if quote == '"':
                value = expand(unescape(value), {**plain(found), **environ})
        else:
            value = expand(re.split(r"(?:^|\s)#", rest, maxsplit=1)[0].strip(), {**plain(found), **environ})
        found[key] = (value, start + 1)
    return found


def lines_of(text: str) -> list[str]:
    """Lines with their ends. Not str.splitlines, which also breaks at characters that are content here."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def plain(found: Mapping[str, tuple[str, int]]) -> dict[str, str]:
    return {key: value for key, (value, _) in found.items()}


def clip(text: str) -> str:
    """A text as it stands there when it is short, else its beginning: a long one may be a key or a token."""
    words = " ".join(text.split())
    return words if len(words) <= 20 else words[:20] + "…"


def closing(body: str, quote: str) -> int | None:
    """Where the closing quote is; inside double quotes a backslash protects one."""
    position = 0
    while position < len(body):
        if quote == '"' and body[position] == "\\":
            position += 2
            continue
        if body[position] == quote:
            return position
        position += 1
    return None


def unescape(value: str) -> str:
    return re.sub(r'\\([nrt"\\])', lambda match: ESCAPES[match[1]], value)


def expand(value: str, known: Mapping[str, str]) -> str:
    """Replace $NAME and ${NAME:-default}; a name that is not set is empty."""

    def one(match: re.Match[str]) -> str:
        name = match["bare"] or match["name"]
        if not name:
            return "$"  # \\$
        current, how, word = known.get(name, ""), match["how"] or "", match["word"] or ""
        there = bool(current) if how.startswith(":") else name in known
        if how.endswith("+"):
            return word if there else ""
        return current if there or not how.endswith("-") else word

    return REFERENCE.sub(one, value)


def quoted(value: str) -> str:
    """A value as a line of make's block.

    >>> quoted("compose.yaml:compose.cpu.yaml"), quoted("a\\nb $c")
    ('compose.yaml:compose.cpu.yaml', '"a\\\\nb \\\\$c"')
    """
    if re.fullmatch(r"[\w./:,=@+-]*", value, re.ASCII):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("$", "\\$")
    return f'"{escaped}"'


def store(path: Path, own: Mapping[str, str]) -> bool:
    """Make `own` the content of make's block; True when the file changed. All else stays byte for byte.

    The new file replaces the old one in one step and keeps its mode; a new one is readable by the owner only.
    """
    before = path.read_bytes() if path.exists() else b""
    block = "".join(
        f"{line}\n" for line in (BEGIN, *(f"{key}={quoted(value)}" for key, value in own.items()), END)
    )
    after = replace_block(before, block.encode())
    if after == before:
        return False
    target = path.resolve()  # a .env that is a link stays one
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o600
    draft = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        draft.touch(mode=mode, exist_ok=False)
        draft.write_bytes(after)
        draft.chmod(mode)
        draft.replace(target)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise Problem(f"{path.name} cannot be written: {error.strerror}") from None
    return True


def replace_block(before: bytes, block: bytes) -> bytes:
    lines = before.splitlines(keepends=True)
    marks = [number for number, line in enumerate(lines) if line.rstrip() in {BEGIN.encode(), END.encode()}]
    if len(marks) == 2:
        return b"".join([*lines[: marks[0]], block, *lines[marks[1] + 1 :]])
    gap = b"" if not before or before.endswith(b"\n") else b"\n"
    return before + gap + block
