"""Every notebook runs in a fresh kernel, shows what its committed outputs show, and its controls work."""

from __future__ import annotations

import base64
import csv
import re
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbconvert import HTMLExporter

from tests.notebooks.refresh import ROOT, all_notebooks, cleaned, executed

pytestmark = pytest.mark.notebook
EVAL_BACKWARD = "RuntimeError: cudnn RNN backward can only be called in training mode"
GPU_LESS = "no GPU was used"
RECORDED = ROOT / "tests/fixtures/smi"


def only(name: str) -> pytest.MarkDecorator:
    """For tests of one notebook's own. The path is that of `fresh`, so that it is executed once for all."""
    (path,) = (path for path in all_notebooks() if path.stem == name)
    return pytest.mark.parametrize("fresh", [path], ids=[name], indirect=True, scope="module")


@pytest.fixture(scope="module", params=all_notebooks(), ids=lambda path: path.stem)
def fresh(request: pytest.FixtureRequest) -> Iterator[tuple[Path, NotebookClient]]:
    """A notebook just executed, its kernel still alive. A cell that fails fails every test of that notebook."""
    with executed(request.param) as client:
        yield request.param, client


def committed(path: Path) -> Any:
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


def code_cells(notebook: nbformat.NotebookNode, tag: str | None = None) -> list[Any]:
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [cell for cell in cells if tag is None or tag in cell.metadata.get("tags", [])]


def text_of(cell: Any, stream: str = "stdout") -> str:
    return "".join(out.text for out in cell.outputs if out.output_type == "stream" and out.name == stream)


def kinds_of(cell: Any) -> list[tuple[str, ...]]:
    """What a cell shows, by kind: ("stream", "stdout"), ("display_data", "image/png"), ..."""
    return [(out.output_type, *sorted(out.get("data", {out.get("name"): None}))) for out in cell.outputs]


def pictures(notebook: nbformat.NotebookNode) -> list[bytes]:
    return [
        base64.b64decode(out.data["image/png"])
        for cell in code_cells(notebook)
        for out in cell.outputs
        if "image/png" in out.get("data", {})
    ]


def in_kernel(client: NotebookClient, code: str) -> str:
    """What this code prints in the notebook's kernel, after the notebook."""
    client.nb.cells.append(nbformat.v4.new_code_cell(code))  # type: ignore[no-untyped-call]
    return text_of(client.execute_cell(client.nb.cells[-1], len(client.nb.cells) - 1))


def ran_on_gpu(notebook: nbformat.NotebookNode) -> bool:
    return GPU_LESS not in text_of(code_cells(notebook, "origin")[0])


def test_it_runs_without_errors_and_warnings(fresh: tuple[Path, NotebookClient]) -> None:
    _, client = fresh
    for cell in code_cells(client.nb):
        assert not [out for out in cell.outputs if out.output_type == "error"], cell.source
        assert text_of(cell, "stderr") == "", cell.source


def test_every_code_cell_of_the_committed_file_was_run_in_order(fresh: tuple[Path, NotebookClient]) -> None:
    cells = code_cells(committed(fresh[0]))
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))


def test_committed_outputs_say_where_they_come_from(fresh: tuple[Path, NotebookClient]) -> None:
    (origin,) = code_cells(committed(fresh[0]), "origin")
    assert re.fullmatch(
        r"The outputs below come from torch \d+\.\d+\.\d+(\+\w+)? on "
        r"(a CPU(, with cuDNN's rule emulated)? \(no GPU was used\)|.+, with the real cuDNN)\.\n",
        text_of(origin),
    )


def test_committed_outputs_are_those_of_a_fresh_run(fresh: tuple[Path, NotebookClient]) -> None:
    """Same kinds everywhere; same text everywhere but in the cell that names its origin."""
    path, client = fresh
    old, new = code_cells(committed(path)), code_cells(client.nb)[: len(code_cells(committed(path)))]
    assert [kinds_of(cell) for cell in new] == [kinds_of(cell) for cell in old]
    if ran_on_gpu(client.nb) != ran_on_gpu(committed(path)):
        return  # numbers of a GPU and of a CPU differ in their last digits
    origin = {cell.id for cell in code_cells(committed(path), "origin")}
    assert {c.id: text_of(c) for c in new if c.id not in origin} == {
        c.id: text_of(c) for c in old if c.id not in origin
    }


def test_pictures_show_something(fresh: tuple[Path, NotebookClient]) -> None:
    from PIL import Image

    for notebook in (fresh[1].nb, committed(fresh[0])):
        shown = pictures(notebook)
        assert shown
        for png in shown:
            image = Image.open(BytesIO(png)).convert("RGB")
            pixels = image.width * image.height
            counts = [count for count, _ in image.getcolors(maxcolors=pixels) or []]
            assert image.width >= 300
            assert len(counts) > 20
            assert max(counts) < 0.97 * pixels


def test_committed_file_is_as_refresh_writes_it(fresh: tuple[Path, NotebookClient]) -> None:
    """No times, no paths of a machine, no random ids: refresh changes only what really changed."""
    path, _ = fresh
    text = path.read_text(encoding="utf-8")
    assert text == cleaned(committed(path))
    assert not re.search(r"/(root|home|Users|tmp)/|iopub\.|shell\.execute", text)
    assert str(ROOT) not in text


@pytest.mark.parametrize("path", all_notebooks(), ids=lambda path: path.stem)
def test_it_can_be_made_a_page(path: Path) -> None:
    """By File, Save and Export in JupyterLab, or `jupyter nbconvert --to html`."""
    page, _ = HTMLExporter().from_filename(str(path))  # type: ignore[no-untyped-call]
    assert page.count("<img") == len(pictures(committed(path)))


# --- 01-cudnn-rnn-error ---


of_01 = only("01-cudnn-rnn-error")


@pytest.fixture
def error_notebook(fresh: tuple[Path, NotebookClient]) -> NotebookClient:
    return fresh[1]


@of_01
def test_01_shows_the_error_where_it_is_marked(error_notebook: NotebookClient) -> None:
    marked = code_cells(error_notebook.nb, "error")
    assert len(marked) == 3
    assert [text_of(cell).splitlines()[0] for cell in marked] == [EVAL_BACKWARD] * 3


@of_01
def test_01_the_mode_at_forward_decides(error_notebook: NotebookClient) -> None:
    assert in_kernel(error_notebook, "print(results)") == "[['ok', 'ok'], ['raises', 'raises']]\n"


@of_01
def test_01_every_fix_trains_and_two_give_eval_outputs(error_notebook: NotebookClient) -> None:
    said = in_kernel(
        error_notebook,
        "for name, r in seen.items():\n"
        "    print(name, r['gradients finite'], r['off by'] < 1e-6, r['repeatable'], r['statistics moved'], sep=', ')",
    )
    assert said.splitlines() == [
        "train() before the forward, True, False, False, True",
        "differentiable_eval, True, True, True, False",
        "cuDNN off at the forward, True, True, True, False",
        "rnn.train() only, True, False, False, False",
    ]


@of_01
def test_01_flipping_the_control_changes_what_it_says(error_notebook: NotebookClient) -> None:
    """The four combinations, set as a click sets them; the handler runs and the model with it."""
    said = in_kernel(
        error_notebook,
        "for forward in names:\n"
        "    for backward in names:\n"
        "        forward_mode.value, backward_mode.value = forward, backward\n"
        "        print(forward, backward, 'works' if 'backward works' in answer.value else 'raises', sep=' ')\n"
        "show()\n"
        "print(answer.value.count('raises the error'))",
    )
    assert said.splitlines() == [
        "train train works",
        "train eval works",
        "eval train raises",
        "eval eval raises",
        "1",
    ]


def test_01_the_control_is_saved_in_the_committed_file() -> None:
    """So that a reader sees it before running anything."""
    notebook = committed(next(path for path in all_notebooks() if path.stem == "01-cudnn-rnn-error"))
    (state,) = notebook.metadata["widgets"].values()
    saved = {model["model_name"] for model in state["state"].values()}
    assert {"ToggleButtonsModel", "HTMLModel", "VBoxModel"} <= saved


@of_01
def test_01_describe_is_text_and_html_in_a_kernel(error_notebook: NotebookClient) -> None:
    (cell,) = (cell for cell in code_cells(error_notebook.nb) if cell.id == "describe")
    (result,) = (out for out in cell.outputs if out.output_type == "execute_result")
    assert "rnn: LSTM" in result.data["text/plain"]
    assert "\x1b" not in result.data["text/plain"]
    assert "<td" in result.data["text/html"]


# --- 05-selftest ---
DATA = ROOT / "notebooks/data/nvidia-smi"


of_05 = only("05-selftest")


@pytest.fixture
def selftest_notebook(fresh: tuple[Path, NotebookClient]) -> NotebookClient:
    return fresh[1]


@of_05
def test_05_judges_the_recorded_hosts_as_the_manifest_does(selftest_notebook: NotebookClient) -> None:
    said = in_kernel(
        selftest_notebook,
        "print(*(f'{host}: {each.verdict.value}' for host, each in judged.items()), sep='\\n')",
    )
    assert said.splitlines() == [
        "one good H200: pass",
        "driver updated, host not rebooted: fail",
        "second H100 lost: fail",
        "nvidia-smi hangs: fail",
        "MIG on, no instance: fail",
        "two T4, driver 550: pass",
    ]


@of_05
def test_05_asks_with_the_columns_of_the_recording(selftest_notebook: NotebookClient) -> None:
    """A wrong list of columns would be judged too, and wrongly."""
    asked = in_kernel(
        selftest_notebook, "for file, command, *_ in HOSTS.values(): print(file, command, sep='|')"
    )
    with (RECORDED / "manifest.tsv").open(newline="") as manifest:
        rows = csv.DictReader(manifest, delimiter="\t", quoting=csv.QUOTE_NONE)
        commands = {row["file"]: row["command"] for row in rows}
    columns = re.compile(r"--query-gpu=(\S+)")
    for file, command in (line.split("|") for line in asked.splitlines()):
        assert columns.findall(command) == columns.findall(commands[file]), file


@of_05
def test_05_finds_the_slow_gpus(selftest_notebook: NotebookClient) -> None:
    (cell,) = (cell for cell in code_cells(selftest_notebook.nb) if cell.id == "fleet")
    assert [line.split(":")[0] for line in text_of(cell).splitlines()] == ["host2 GPU 5", "host6 GPU 1"]


def test_05_its_recordings_are_those_of_the_tests() -> None:
    """Copies, because the image holds no tests; each is named in the README beside them."""
    files = sorted(DATA.glob("*.txt"))
    assert len(files) == 6
    for file in files:
        assert file.read_bytes() == (RECORDED / file.name).read_bytes(), file.name
        assert f"`{file.name}`" in (DATA / "README.md").read_text()
