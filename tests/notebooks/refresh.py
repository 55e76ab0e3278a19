"""Execute the notebooks and write their outputs back: `python -m tests.notebooks.refresh [NAME ...]`.

The .ipynb files are the source. Only outputs are rewritten, without times, paths and random ids, so that two runs on
one machine give the same file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}


def all_notebooks() -> list[Path]:
    """Every notebook of the project, in order."""
    return sorted(NOTEBOOKS.glob("*.ipynb"))


@contextmanager
def executed(path: Path, timeout_s: int = 300) -> Iterator[NotebookClient]:
    """Run a notebook from the top in a fresh kernel, with this checkout's torchtap, and keep the kernel for more.

    Yields the client; its `nb` holds the fresh outputs. Raises nbclient's `CellExecutionError` where a cell fails.
    """
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    with TemporaryDirectory() as scratch:
        env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "IPYTHONDIR": scratch}
        env.pop("MPLBACKEND", None)  # pictures go into the notebook
        client = NotebookClient(
            notebook,
            timeout=timeout_s,
            kernel_name="python3",
            record_timing=False,
            coalesce_streams=True,  # else the number of pieces of a text depends on the time between prints
            resources={"metadata": {"path": str(path.parent)}},
        )
        with client.setup_kernel(env=env, stderr=sys.stderr):
            for index, cell in enumerate(notebook.cells):
                client.execute_cell(cell, index)
            client.set_widgets_metadata()
            yield client


def cleaned(notebook: nbformat.NotebookNode) -> str:
    """The notebook as text, without what differs from run to run."""
    widgets = notebook.metadata.get("widgets", {})
    notebook.metadata = {
        "kernelspec": KERNEL,
        "language_info": {"name": "python"},
        **({"widgets": widgets} if widgets else {}),  # nbconvert fails on an empty one
    }
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    text = _written(notebook)
    made = [widget for kind in widgets.values() for widget in kind["state"]]
    for number, widget in enumerate(made):  # random ids become numbers, in the order of making
        text = text.replace(widget, f"{number:032x}")
    return _written(nbformat.reads(text, as_version=4))  # type: ignore[no-untyped-call]  # sorts by the new ids


def _written(notebook: nbformat.NotebookNode) -> str:
    text: str = nbformat.writes(notebook)  # type: ignore[no-untyped-call]
    return text.rstrip("\n") + "\n"


def refresh(path: Path) -> None:
    """Execute a notebook and replace the file, or leave it as it is where a cell fails."""
    with executed(path) as client:
        text = cleaned(client.nb)
    half_written = path.with_suffix(".tmp")
    half_written.write_text(text, encoding="utf-8")
    half_written.replace(path)


def main(names: list[str]) -> int:
    """Refresh the notebooks whose file name contains one of these words; all of them without words."""
    chosen = [path for path in all_notebooks() if not names or any(name in path.name for name in names)]
    if not chosen:
        have = ", ".join(path.name for path in all_notebooks())
        print(f"no notebook matches {' '.join(names)}; there are: {have}", file=sys.stderr)  # noqa: T201
        return 2
    for path in chosen:
        refresh(path)
        print(f"{path.name}: executed, outputs written")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
