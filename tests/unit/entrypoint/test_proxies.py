"""Proxy variables in both spellings."""

from __future__ import annotations

import pytest

from entrypoint.proxies import LOCAL, variables

PROXY, OTHER = "http://user:word@proxy.example:3128", "http://other.example:8080"
BOTH = {"NO_PROXY": LOCAL, "no_proxy": LOCAL}


@pytest.mark.parametrize(
    ("given", "added"),
    [
        ({}, {}),
        ({"HTTP_PROXY": ""}, {}),
        ({"NO_PROXY": "intra"}, {"no_proxy": "intra"}),
        ({"HTTP_PROXY": PROXY}, {"http_proxy": PROXY, **BOTH}),
        ({"https_proxy": PROXY}, {"HTTPS_PROXY": PROXY, **BOTH}),
        ({"all_proxy": PROXY}, {"ALL_PROXY": PROXY, **BOTH}),
        ({"HTTP_PROXY": PROXY, "no_proxy": "intra"}, {"http_proxy": PROXY, "NO_PROXY": "intra"}),
        ({"HTTP_PROXY": PROXY, "http_proxy": OTHER}, BOTH),
    ],
    ids=[
        "none", "empty", "exceptions alone", "capitals", "small letters", "for everything", "with exceptions",
        "two that differ",
    ],
)  # fmt: skip
def test_each_spelling_has_what_the_other_has_and_nothing_set_is_changed(
    given: dict[str, str], added: dict[str, str]
) -> None:
    assert variables(given) == added
