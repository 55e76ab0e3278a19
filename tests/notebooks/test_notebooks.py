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
RANKS_MET = re.compile(r"\[Gloo\] Rank \d+ is connected to .*\n")
"""On stdout, by PyTorch 2.9. Later versions say nothing."""


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


def line_in(cell: Any, code: str) -> str:
    """How findings name the line of this cell that holds the code: `In[5]:3`."""
    (number,) = (n for n, line in enumerate(cell.source.splitlines(), start=1) if code in line)
    if cell.source.startswith("%%script"):  # another Python reads it, without the first line
        return f"<stdin>:{number - 1}"
    return f"In[{cell.execution_count}]:{number}"


def cell_of(client: NotebookClient, id: str) -> Any:
    (cell,) = (cell for cell in code_cells(client.nb) if cell.id == id)
    return cell


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
    assert {c.id: RANKS_MET.sub("", text_of(c)) for c in new if c.id not in origin} == {
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
    assert len(marked) == 2
    assert [text_of(cell).splitlines()[0] for cell in marked] == [EVAL_BACKWARD] * 2


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
        "without_cudnn, True, True, True, False",
        "rnn.train() only, True, False, False, False",
    ]


@of_01
def test_01_foresees_the_error_and_names_the_lines(error_notebook: NotebookClient) -> None:
    cell = cell_of(error_notebook, "foresee")
    said = text_of(cell)
    assert said.startswith("rnn (LSTM)")
    assert len(said.splitlines()) == 1
    model = cell_of(error_notebook, "model")
    for place in (
        line_in(model, "self.rnn(self.drop"),
        line_in(cell, "loss = "),
        line_in(cell, "model.eval()"),
    ):
        assert place in said
    whole = text_of(cell_of(error_notebook, "foresee-all"))
    assert line_in(cell, "model.train()") in whole


@of_01
def test_01_blames_the_validation_once_the_second_epoch_raises(error_notebook: NotebookClient) -> None:
    cell = cell_of(error_notebook, "blame")
    first, error, *why = text_of(cell).splitlines()
    assert first == "epoch 1 done"
    assert error == EVAL_BACKWARD
    assert line_in(cell, "model.eval()") in why[0]
    assert "validate()" in why[-1]
    assert text_of(cell_of(error_notebook, "blame-mended")).count("done") == 3


@of_01
def test_01_says_how_each_look_alike_ends(error_notebook: NotebookClient) -> None:
    said = in_kernel(
        error_notebook, "print(*(end.split(' off by')[0] for end in endings.values()), sep='\\n')"
    )
    refused = EVAL_BACKWARD.replace("RuntimeError", "raises")
    assert said.splitlines() == [
        refused,
        refused,
        refused,
        "raises: element 0 of tensors does not require grad and does not have a grad_fn",
        "raises: Trying to backward through the graph a second time",
        "no error, but outputs",
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
    (result,) = (
        out for out in cell_of(error_notebook, "describe").outputs if out.output_type == "execute_result"
    )
    assert "rnn: LSTM" in result.data["text/plain"]
    assert "\x1b" not in result.data["text/plain"]
    assert "<td" in result.data["text/html"]


# --- 02-modes-in-practice ---


of_02 = only("02-modes-in-practice")


@pytest.fixture
def practice_notebook(fresh: tuple[Path, NotebookClient]) -> NotebookClient:
    return fresh[1]


@of_02
@pytest.mark.parametrize(
    ("cell", "finding", "line"),
    [
        ("loop", "mode.train_in_evaluation", "careless = "),
        ("mid", "mode.not_restored", "net.eval()"),
        ("bn", "batchnorm.frozen_updates", "model.train()"),
        ("ranks", "mode.ranks_differ", "net.module.eval()"),
    ],
)
def test_02_each_silent_mistake_is_found(
    practice_notebook: NotebookClient, cell: str, finding: str, line: str | None
) -> None:
    shown = cell_of(practice_notebook, cell)
    said = text_of(shown)
    assert re.findall(r"^(?:warn|info|error) +(\S+)", said, re.MULTILINE) == [finding]
    if line is not None:
        assert line_in(shown, line) in said


@of_02
def test_02_the_error_names_the_critic_and_the_line_too_late(practice_notebook: NotebookClient) -> None:
    cell = cell_of(practice_notebook, "rl-wrong")
    error, where, why, *_ = text_of(cell).splitlines()
    assert error == EVAL_BACKWARD
    assert "Critic1.rnn (LSTM)" in where
    assert re.search(rf"{re.escape(line_in(cell, '    critic.eval()'))}\b", where)
    assert line_in(cell, "critic.train()") in why


@of_02
def test_02_accumulation_stops_before_backward(practice_notebook: NotebookClient) -> None:
    cell = cell_of(practice_notebook, "acc")
    count, report = text_of(cell).splitlines()
    assert count == "micro-batch 3 of 4:"
    assert report.startswith("rnn (GRU), call 4")  # the third call was that of the sample
    assert line_in(cell, "model.eval()") in report


@of_02
def test_02_the_loss_is_a_saw_where_dropout_was_off(practice_notebook: NotebookClient) -> None:
    """As the text says: equal at first, far lower after a validation, higher after train(), worse in the end."""
    said = in_kernel(
        practice_notebook,
        "halves = torch.tensor(wrong).reshape(EPOCHS, 2, -1).mean(-1)\n"
        "usual = torch.tensor(right).reshape(EPOCHS, 2, -1).mean(-1)\n"
        "print(bool((halves[:, 1] < 0.5 * usual[:, 1]).all()), bool((halves[1:, 0] > usual[1:, 0]).all()))\n"
        "print(wrong_validation[0] == right_validation[0], wrong_validation[-1] > 1.05 * right_validation[-1])",
    )
    assert said.split() == ["True"] * 4


@of_02
def test_02_only_eval_mode_in_train_freezes(practice_notebook: NotebookClient) -> None:
    said = in_kernel(
        practice_notebook,
        "for off, findings in frozen.values(): print(off[15] > 0, off[16] > 0, off[-1] > 50, len(findings))",
    )
    assert said.splitlines() == ["True True True 1", "False True True 1", "False False False 0"]


@of_02
def test_02_has_a_picture_where_one_tells_more(practice_notebook: NotebookClient) -> None:
    shown = [
        cell.id
        for cell in code_cells(practice_notebook.nb)
        if ("display_data", "image/png", "text/plain") in kinds_of(cell)
    ]
    assert shown == ["mid-picture", "sal-picture", "bn-picture"]


# --- 03-hooks ---


of_03 = only("03-hooks")


@pytest.fixture
def hooks_notebook(fresh: tuple[Path, NotebookClient]) -> NotebookClient:
    return fresh[1]


@of_03
@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("by-hand", "the outputs are what they were: False"),
        ("on-forward", "the outputs are what they were: True"),
        ("nothing", "nearest: layers.*.self_attn"),
        ("captured", "0: output (6, 8, 16, 16) on cpu, requires_grad False"),
        (
            "in-place-by-hand",
            "RuntimeError: Output 0 of BackwardHookFunction is a view and is being modified inplace",
        ),
        ("in-place-by-hand", "in the kept output of the Linear: False"),
        ("in-place", "in the kept output of the Linear: True"),
        ("calls", "call 1: sequence (2, 7, 4), hidden (1, 2, 4); gradient at steps [6]"),
        ("left", "careless: 3 hooks are left\ncareful: 0 hooks are left"),
        ("saved", "torch.save(model), by hand: "),
        ("saved", "what is loaded call the hook 0 times"),
        ("coverage", "head: Net calls self.head.forward(...), which runs no hooks"),
        ("coverage", "spare: "),
    ],
)
def test_03_shows_what_goes_wrong_by_hand_and_how_it_is_right(
    hooks_notebook: NotebookClient, cell: str, said: str
) -> None:
    assert said in text_of(cell_of(hooks_notebook, cell))


# --- 04-diagnose ---


of_04 = only("04-diagnose")


@pytest.fixture
def diagnose_notebook(fresh: tuple[Path, NotebookClient]) -> NotebookClient:
    return fresh[1]


@of_04
@pytest.mark.parametrize(
    ("bad", "finding", "mended"),
    [
        ("dead", "warn   relu.dead at 3: ", "mended"),
        ("vanishing", "warn   gradient.vanishing at ", "vanishing-mended"),
    ],
)
def test_04_the_remedy_that_is_told_mends_the_training(
    diagnose_notebook: NotebookClient, bad: str, finding: str, mended: str
) -> None:
    """B11 is the first. The line of the remedy is in the next training, and its loss falls."""
    told = text_of(cell_of(diagnose_notebook, bad))
    assert told.startswith(finding)
    assert "nn.init.kaiming_normal_(model[" in told
    cell = cell_of(diagnose_notebook, mended)
    assert 'nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")' in cell.source
    first, last = map(float, re.findall(r"\d+\.\d+", text_of(cell).splitlines()[0]))
    assert last < first / 2
    assert text_of(cell).endswith("nothing found\n")


@of_04
def test_04_the_loss_does_not_fall_before(diagnose_notebook: NotebookClient) -> None:
    said = in_kernel(
        diagnose_notebook, "print(min(flat[-20:]) > 0.8 * flat[0], min(slow[-20:]) > 0.8 * slow[0])"
    )
    assert said == "True True\n"


@of_04
def test_04_names_the_operation_the_line_and_the_remedy(diagnose_notebook: NotebookClient) -> None:
    told = text_of(cell_of(diagnose_notebook, "find-nan"))
    assert told.startswith("Inf first in aten.div (backward: SqrtBackward0)")
    assert line_in(cell_of(diagnose_notebook, "distances"), ".sqrt()") in told
    assert "(x + 1e-8).sqrt()" in told
    mended = cell_of(diagnose_notebook, "find-nan-mended")
    assert "+ 1e-8).sqrt()" in mended.source
    assert text_of(mended) == "all values and gradients are finite\n"


@of_04
def test_04_names_the_rank(diagnose_notebook: NotebookClient) -> None:
    told = text_of(cell_of(diagnose_notebook, "ranks"))
    assert told.startswith("error  ranks.nonfinite at the model itself: rank 1 first, in step 5")
    assert "the batch of rank 1 in step 5 holds NaN or infinity" in told


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
    lines = text_of(cell_of(selftest_notebook, "fleet")).splitlines()
    assert [line.split(":")[0] for line in lines] == ["host2 GPU 5", "host6 GPU 1"]


def test_05_its_recordings_are_those_of_the_tests() -> None:
    """Copies, because the image holds no tests; each is named in the README beside them."""
    files = sorted(DATA.glob("*.txt"))
    assert len(files) == 6
    for file in files:
        assert file.read_bytes() == (RECORDED / file.name).read_bytes(), file.name
        assert f"`{file.name}`" in (DATA / "README.md").read_text()
