"""Where caches go."""

from __future__ import annotations

from entrypoint.caches import CACHES, places


def test_all_lie_below_the_homes_cache_folder() -> None:
    assert places("/home/dev", {}) == {
        "HF_HOME": "/home/dev/.cache/huggingface",
        "TORCH_HOME": "/home/dev/.cache/torch",
        "TRITON_CACHE_DIR": "/home/dev/.cache/triton",
        "TORCHINDUCTOR_CACHE_DIR": "/home/dev/.cache/torchinductor",
    }


def test_xdg_cache_home_moves_them() -> None:
    assert set(places("/home/dev", {"XDG_CACHE_HOME": "/big"}).values()) == {
        "/big/huggingface",
        "/big/torch",
        "/big/triton",
        "/big/torchinductor",
    }


def test_what_is_set_is_not_touched() -> None:
    assert places("/home/dev", {name: "/mine" for name, _, _ in CACHES}) == {}
