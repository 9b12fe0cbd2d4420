"""The commands of the pages run, in order, on small data; `test_commands.py` parses all of them."""

import os
import pathlib
import re
import runpy

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from tests.docs.test_commands import PAGES, ROOT
from tfp_bfl.app.cli import run_command_line
from tfp_bfl.weights import seeded

pytestmark = [pytest.mark.deep(after="tests/docs/test_commands.py"), pytest.mark.long]

# A word of commands that are not run -> why.
EXCEPTIONS = {
    "completion": "writes into the reader's home",
    "--help": "tests/docs/test_commands.py",
    "deploy": "sites and their server: tests/sites",
    "--ood": "two datasets of one shape from the network: tests/bench/test_reports.py",
    "bench": "minutes of many runs: tests/bench/test_bench.py",
    "doctor": "describes the machine: tests/app/test_doctor.py",
}
# Page -> commands of earlier pages that it continues from.
BEFORE = {
    "serving.md": [
        "run --dataset patients.csv --label diagnosis --client-column hospital --drop patient_id --model mlp "
        "--output hospitals_run"
    ],
    "fl_swag.md": ["run --algorithm fl_swag --model lenet --last-layer --pretrain-share 0.3 --output other_run"],
}
# An option, and its value on a page -> with less to compute, or data that every machine has.
SMALLER = {
    **{
        (option, None): few for option, few in {"--rounds": "2", "--local-epochs": "1", "--average-rounds": "2"}.items()
    },
    **{("--batch-size", None): "16", ("--seeds", None): "0,1", ("--ensemble", None): "2", ("--cohort-size", None): "3"},
    **{("--dataset", name): "digits" for name in ("mnist", "fashion_mnist", "cifar10")},
    **{("--model", name): "mlp" for name in ("lenet", "resnet20")},
    **{("--clients", "1000"): "10", ("--accuracy", "0.95"): "0.05"},
    ("--burn-in-rounds", None): "1",
}
LESS = ["--num-samples", "3", "--evaluation-examples", "50", "--engine", "local"]


def smaller(command):
    """The command with fewer rounds and examples, and with the engine of this process."""
    words = [word.replace("$PWD", os.getcwd()) for word in command]
    words = words[: words.index(">")] if ">" in words else words
    words = [
        SMALLER.get((before, word), SMALLER.get((before, None), word)) for before, word in zip(["", *words], words)
    ]
    if words[0] in ("run", "sweep") and not {"--resume", "--config", "--start"} & {*words}:
        words += [] if "--rounds" in words else ["--rounds", "2"]
        words += [] if {"--clients", "--client-column"} & {*words} else ["--examples-per-client", "40"]
        words += LESS if "--engine" not in words else LESS[:-2]
    if words[0] == "run" and not {"--output", "--resume"} & {*words}:
        words += ["--output", f"run {len(os.listdir())}"]
    return words


def write_table(path, columns):
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values()))]
    pathlib.Path(path).write_text("\n".join(lines))


def text_of(page):
    return (ROOT / page if page == "README.md" else ROOT / "docs" / page).read_text()


def is_expected(error, words, page):
    """Return whether the page shows this refusal, or resumes a run that nothing has interrupted here."""
    last = " ".join(error.splitlines()[-1:])
    if not last.startswith("tfp-bfl: "):
        return False
    # The page has more rows than the table here.
    plain = lambda text: re.sub(r"\d+ texts", "N texts", " ".join(text.split()))
    as_shown = plain(last) in plain(text_of(page))
    return as_shown or ("--resume" in words and "is complete: there is nothing to resume" in last)


def write_files(page):
    """The reader's own files that pages name, and the programs that this page prints."""
    text = text_of(page)
    for name, program in re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", text, re.S | re.M):
        pathlib.Path(name).write_text(program)
    rows, rng = np.arange(90), np.random.default_rng(0)
    features = {"rooms": rows % 40, "age": np.sin(rows).round(3)}
    write_table("new_houses.csv", features)
    write_table("houses.csv", {**features, "agency": np.resize(["n", "s"], 90), "price": (rows % 40) * 3.5 + 1})
    features = {"radius": rng.normal(size=90).round(3), "area": rng.normal(size=90).round(3)}
    write_table("new_patients.csv", features)
    named = {"diagnosis": np.resize(["benign", "malignant"], 90), "hospital": np.resize(["a", "b", "c"], 90)}
    write_table("patients.csv", {"patient_id": [f"P{i:04}" for i in rows], **features, **named})
    county, basement = np.resize(["x", "y", "z"], 90), rows % 2
    radon = {"county": county, "basement": basement, "uranium": features["radius"], "log.radon": features["area"]}
    write_table("radon.csv", radon)
    drug, weeks = np.resize(["6-MP", "placebo"], 90), 1 + rows % 23
    trial = {"hospital": county, "drug": drug, "weeks": weeks, "relapse": rng.integers(0, 2, 90)}
    write_table("leukaemia.csv", trial)
    pupils = {"lea": county, "gcsecnt": features["radius"], "gender": np.resize(["F", "M"], 90), "age": rows % 12 - 6}
    score = np.clip(np.rint(features["radius"] + features["area"]) + 2, 0, 4).astype(int)  # Each class in each place.
    pq.write_table(pa.table({**pupils, "score": 2 * score}), "chem97.parquet")
    heart = (ROOT / "tfp_bfl/data/heart_disease/heart_disease.csv").read_text().splitlines()
    pathlib.Path("heart.csv").write_text("\n".join(heart))
    pathlib.Path("new.csv").write_text("\n".join(line.split(",", 1)[1].rsplit(",", 1)[0] for line in heart[:4]))
    for program in sorted(pathlib.Path().glob("make_*.py")):
        if program.name == "make_heart.py":
            pytest.importorskip("datasets")
        runpy.run_path(str(program))
    if "body.keras" in text:
        with seeded(0):
            body = [tf.keras.Input((8, 8, 1)), tf.keras.layers.Flatten(), tf.keras.layers.Dense(8, "relu")]
            tf.keras.Sequential(body).save("body.keras")
    images = rng.integers(0, 255, size=(60, 8, 8, 1)).astype(np.uint8)
    np.savez("scans.npz", features=images, labels=np.resize([0, 1], 60))
    np.savez("more.npz", features=images[:3])
    np.savez("embeddings.npz", features=rng.normal(size=(90, 5)), labels=rows % 3, clients=np.repeat(range(10), 9))
    for i, image in enumerate(images):
        clients = (("north", "south")[i % 2], ("odd", "even")[i // 2 % 2]) if page == "own_data.md" else ()
        paths = [pathlib.Path("scans", *clients, f"{i}.png"), *[pathlib.Path("scan.png")] * (i == 0)]
        if page == "backbones.md":
            paths.append(pathlib.Path("photos", f"site {i % 2}", ("frog", "ship")[i // 2 % 2], f"{i}.png"))
        elif i == 0:
            paths.append(pathlib.Path("photos", "0.png"))
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            tf.io.write_file(str(path), tf.io.encode_png(image))


@pytest.mark.parametrize("page", [page for page, commands in PAGES.items() if commands])
def test_the_commands_of_a_page_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_files(page)
    for command in [*(line.split() for line in BEFORE.get(page, [])), *PAGES[page]]:
        words = smaller(command)
        if not any(part in words for part in EXCEPTIONS):
            code, error = run_command_line(words), capsys.readouterr().err
            assert code == 0 or is_expected(error, words, page), (words, error)
