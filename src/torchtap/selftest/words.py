"""Small words that several checks use: names of GPUs, versions, joined lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def and_list(words: Sequence[str]) -> str:
    """Words in one phrase.

    >>> and_list(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def name_gpus(indexes: Iterable[int | None], bus: object = None) -> str:
    """Which GPUs, for the slot {gpus}: by index, else by bus id, else by what is known: nothing.

    >>> name_gpus([1, 3]), name_gpus([0]), name_gpus([None], "0000:5E:00.0"), name_gpus([None])
    ('GPUs 1 and 3', 'GPU 0', 'the GPU at 0000:5E:00.0', 'the GPU')
    """
    known = sorted({index for index in indexes if index is not None and index >= 0})
    if not known:
        return f"the GPU at {bus}" if bus else "the GPU"
    words = [str(index) for index in known]
    return f"GPU {words[0]}" if len(words) == 1 else f"GPUs {and_list(words)}"


def count(number: int, thing: str) -> str:
    """A number with its noun.

    >>> count(1, "GPU"), count(8, "GPU")
    ('1 GPU', '8 GPUs')
    """
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def size(number: int) -> str:
    """Bytes as people write them.

    >>> size(64 << 20), size(8 << 30), size(65_536)
    ('64 MiB', '8.0 GiB', '64 KiB')
    """
    if number >= 1 << 30:
        return f"{number / (1 << 30):,.1f} GiB"
    return f"{number >> 20} MiB" if number >= 1 << 20 else f"{number >> 10} KiB"


def age(seconds: float) -> str:
    """How long ago, in one unit.

    >>> age(42), age(700), age(3 * 3600), age(1.9e6)
    ('42 s', '11 min', '3 h', '21 days')
    """
    for limit, unit, word in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{int(seconds // unit)} {word}"
    return f"{int(seconds // 86_400)} days"


def figure(value: float) -> str:
    """A measured value as people read it: four digits, and never a power of ten.

    >>> figure(128000.4), figure(696.42), figure(51.2)
    ('128,000', '696.4', '51.2')
    """
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def took(seconds: float) -> str:
    """A time as people read it.

    >>> took(4.23), took(780)
    ('4.2 s', '13 min')
    """
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:,.0f} min"


def waited(seconds: float) -> str:
    """How long somebody waited, for texts that end in "s": whole seconds, and never 0.

    >>> waited(20.04), waited(1.06), waited(0.0012)
    ('20', '1', '0.001')
    """
    return f"{seconds:.0f}" if seconds >= 1 else f"{seconds:.1g}"


def cudnn_version(number: int) -> str:
    """cuDNN's version number as people write it.

    >>> cudnn_version(92400), cudnn_version(8907)
    ('9.24.0', '8.9.7')
    """
    major, rest = divmod(number, 10_000 if number >= 90_000 else 1_000)
    return f"{major}.{rest // 100}.{rest % 100}"


def version(parts: Iterable[int]) -> str:
    """A driver version as NVIDIA writes it.

    >>> version((580, 65, 6)), version((595, 80))
    ('580.65.06', '595.80')
    """
    return ".".join(f"{part:02d}" for part in parts)


def shorten(text: str, limit: int) -> str:
    """At most about `limit` characters: beginning and end stay, because errors stand at either.

    >>> shorten("abcdefghij", 4)
    'ab\\n[... 6 characters left out ...]\\nij'
    """
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def printable(text: str, instead: str = "\N{REPLACEMENT CHARACTER}", keep: str = "") -> str:
    r"""Text that can neither move a cursor nor fail to be encoded: other characters than `keep` are replaced.

    >>> printable("GPU\x1b[2J 0\n", instead=" ")
    'GPU [2J 0 '
    """
    return "".join(char if char.isprintable() or char in keep else instead for char in text)
