"""What must not lie in any layer of an image: run in a container that has the layers' folders below /layers.

Prints JSON: [[[path, what it is], ...], how many files were looked at]; paths begin with the layer's number.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

# What a file is by its name.
NAMES = (
    (r"(^|/)(\.ssh/)?id_(rsa|dsa|ecdsa|ed25519)(_sk)?$", "an SSH key"),
    (r"(^|/)ssh_host_\w+_key(\.pub)?$", "an SSH host key"),
    (r"(^|/)authorized_keys$", "keys that may log in"),
    (r"(^|/)jupyter-token$", "Jupyter's token"),
    (
        r"(^|/)(\.netrc|\.git-credentials|\.pypirc|\.npmrc|\.env|\.\w+_history)$",
        "what a person keeps for himself",
    ),
    (r"(^|/)\.(docker|aws|kube|huggingface)/", "credentials"),
    (r"(^|/)\.git(/|$)", "a repository's history"),
    (r"(^|/)secrets/[^/]+$", "a build's secret"),
    (r"(^|/)(\.cache/(pip|uv)/|\.uv/)|apt/lists/[^/]+_Packages[^/]*$", "a cache of the build"),
)
# What a file is by what is in it: words that it must hold (quickly looked for), what it must look like.
CONTENT = (
    ((b"PRIVATE KEY",), rb"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----\s+[A-Za-z0-9+/=\s]{64}", "a private key"),
    ((b"AKIA",), rb"\bAKIA[0-9A-Z]{16}\b", "an access key of AWS"),
    ((b"ghp_", b"gho_", b"ghs_", b"ghr_"), rb"\bgh[posr]_[A-Za-z0-9]{36}\b", "a token of GitHub"),
    ((b"github_pat_",), rb"\bgithub_pat_\w{50}", "a token of GitHub"),
    ((b"glpat-",), rb"\bglpat-[\w-]{20}", "a token of GitLab"),
    ((b"hf_",), rb"\bhf_[A-Za-z]{34}\b", "a token of Hugging Face"),
    ((b"xoxb-", b"xoxa-", b"xoxp-"), rb"\bxox[bap]-[0-9A-Za-z-]{20}", "a token of Slack"),
    ((b":$",), rb"(?m)^(?:root|dev|ubuntu):\$[0-9a-z]+\$", "a password"),
    (
        (b"index-url", b"proxy"),
        rb"(?i)(?:index-url|proxy)\s*=\s*\w+://[^\s/@]+:[^\s/@]+@",
        "a password in an address",
    ),
)
# Wheels from the public index: anybody can have them, and reading them all takes minutes. Only what looks like a key is
# opened there.
PUBLIC = re.compile(r"^\d+/opt/torchtap/venv/lib/[^/]+/site-packages/(?!torchtap)")
PRIVATE = re.compile(r"(?i)\.(pem|key|p12|pfx)$|(^|/)(pip\.conf|uv\.toml)$")
LARGEST = 1 << 20
names = [(re.compile(pattern), what) for pattern, what in NAMES]
contents = [(words, re.compile(pattern), what) for words, pattern, what in CONTENT]


def scan(folder: Path) -> tuple[list[tuple[str, str]], int]:
    found, seen = [], 0
    for directory, _, files in os.walk(folder):
        for path in (Path(directory, name) for name in files):
            seen += 1
            inside = path.relative_to(folder).as_posix()
            found += [(inside, what) for pattern, what in names if pattern.search(inside)]
            wanted = PRIVATE.search(inside) if PUBLIC.search(inside) else True
            if wanted and path.is_file() and not path.is_symlink():
                with path.open("rb") as file:
                    text = file.read(LARGEST)
                found += [
                    (inside, what)
                    for words, pattern, what in contents
                    if any(word in text for word in words) and pattern.search(text)
                ]
    return found, seen


if __name__ == "__main__":
    json.dump(scan(Path("/layers")), sys.stdout)
