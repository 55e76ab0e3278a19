"""Proxy variables: the spelling that is missing, and what must not go through a proxy.

curl reads http_proxy in small letters only, other programs capitals only, so each has what the other has. Nothing
that is set is changed.

>>> sorted(variables({"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "intra.example"}))
['https_proxy', 'no_proxy']
>>> variables({})
{}
"""

from __future__ import annotations

from collections.abc import Mapping

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY")
NAMES = (*PROXIES, "NO_PROXY")
# The container itself: TensorBoard and one's own servers, asked from a notebook. A proxy would look for them elsewhere.
LOCAL = "localhost,127.0.0.1,::1"


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables to set."""
    given = {name: environment.get(name) or environment.get(name.lower()) or "" for name in NAMES}
    if any(given[name] for name in PROXIES) and not given["NO_PROXY"]:
        given["NO_PROXY"] = LOCAL
    both = {spelled: value for name, value in given.items() if value for spelled in (name, name.lower())}
    return {name: value for name, value in both.items() if not environment.get(name)}
