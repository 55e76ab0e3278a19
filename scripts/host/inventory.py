"""What is installed in an image, as JSON on stdout. Sent to the image's own Python; standard library only.

Nothing of it is run or guessed: the metadata of the Python distributions, dpkg's database with the licence lines of
Debian's copyright files, and the manifest.
"""

from __future__ import annotations

import json
import re
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

FIELDS = "${binary:Package}\\t${Version}\\t${Architecture}\\t${source:Package}\\t${Homepage}\\t${db:Status-Status}\\n"
LICENCE = re.compile(r"^License:[ \t]*(\S.*)$", re.MULTILINE)


def python_distributions() -> list[dict[str, Any]]:
    """Those of the Python that runs this: the base environment, torchtap too."""
    found = []
    for each in metadata.distributions():
        about = each.metadata
        found.append(
            {
                "name": about["Name"],
                "version": about["Version"],
                "summary": about["Summary"] or "",
                "homepage": about["Home-page"] or "",
                "expression": about["License-Expression"] or "",
                "licence": about["License"] or "",
                "classifiers": [
                    text for text in about.get_all("Classifier") or [] if text.startswith("License ::")
                ],
            }
        )
    return sorted(found, key=lambda each: (each["name"].lower(), each["version"]))


def os_packages(documents: Path = Path("/usr/share/doc")) -> list[dict[str, Any]]:
    """Installed packages as dpkg knows them."""
    done = subprocess.run(
        ["dpkg-query", "--show", f"--showformat={FIELDS}"], capture_output=True, text=True, check=True
    )
    found = []
    for line in done.stdout.splitlines():
        name, version, architecture, source, homepage, status = line.split("\t")
        if status != "installed":
            continue
        bare = name.partition(":")[0]
        found.append(
            {
                "name": bare,
                "version": version,
                "architecture": architecture,
                "source": source,
                "homepage": homepage,
                "licences": licences(documents / bare / "copyright"),
            }
        )
    return sorted(found, key=lambda each: (each["name"], each["architecture"]))


def licences(copyright_file: Path) -> list[str]:
    """The short names in a machine-readable copyright file; empty where there is none, or none can be read."""
    try:
        text = copyright_file.read_text(errors="replace")
    except OSError:
        return []
    return sorted({name.strip() for name in LICENCE.findall(text)}) if "Format:" in text[:2000] else []


def release() -> dict[str, str]:
    """os-release: which distribution this is."""
    pairs = (line.partition("=")[::2] for line in Path("/etc/os-release").read_text().splitlines())
    return {name: value.strip('"') for name, value in pairs if name}


def main() -> None:
    manifest = json.loads(Path("/opt/torchtap/manifest.json").read_text())
    print(
        json.dumps(
            {
                "manifest": manifest,
                "release": release(),
                "python": python_distributions(),
                "os": os_packages(),
            }
        )
    )


if __name__ == "__main__":
    main()
