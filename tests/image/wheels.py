"""Small wheels made by the tests themselves, so that installing needs no network."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path


def wheel(
    folder: Path,
    name: str,
    version: str,
    files: Mapping[str, str],
    *,
    requires: tuple[str, ...] = (),
    scripts: str = "",
) -> Path:
    """NAME-VERSION-py3-none-any.whl with these files; `NAME.data/data/...` goes below the environment's prefix."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {each}\n" for each in requires)
    noted = {
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: torchtap-tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if scripts:
        noted[f"{info}/entry_points.txt"] = f"[console_scripts]\n{scripts}\n"
    everything = {**files, **noted}
    record = "".join(f"{file},,\n" for file in [*everything, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in {**everything, f"{info}/RECORD": record}.items():
            archive.writestr(file, text)
    return path


def plain(folder: Path, name: str, version: str, **more: str) -> Path:
    """A module that knows its version, and a program of the same name that says it."""
    code = f"version = {version!r}\ndef main():\n    print({name!r}, version)\n"
    return wheel(folder, name, version, {f"{name}.py": code, **more}, scripts=f"{name} = {name}:main")


def lab_extension(folder: Path) -> Path:
    """A JupyterLab extension as people install them: a part in the browser, and one in the server."""
    share = "labdemo-1.0.data/data/share/jupyter/labextensions/labdemo"
    etc = "labdemo-1.0.data/data/etc/jupyter/jupyter_server_config.d/labdemo.json"
    build = {"load": "static/remoteEntry.js", "extension": "./extension"}
    package = {"name": "labdemo", "version": "1.0", "jupyterlab": {"extension": True, "_build": build}}
    server = """
from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import url_path_join

class Demo(APIHandler):
    def get(self):
        self.finish({"labdemo": "answers"})

def _jupyter_server_extension_points():
    return [{"module": "labdemo"}]

def _load_jupyter_server_extension(app):
    app.web_app.add_handlers(".*", [(url_path_join(app.web_app.settings["base_url"], "labdemo"), Demo)])
"""
    files = {
        "labdemo.py": server,
        f"{share}/package.json": json.dumps(package),
        f"{share}/static/remoteEntry.js": "// nothing\n",
        etc: json.dumps({"ServerApp": {"jpserver_extensions": {"labdemo": True}}}),
    }
    return wheel(folder, "labdemo", "1.0", files)
