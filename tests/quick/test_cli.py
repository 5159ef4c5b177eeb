"""The command line, run in-process: what it prints, and one line for a mistake."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import ropewalk
from helpers.command import Run
from ropewalk.cli import cli, main
from ropewalk.reading import check_name
from ropewalk.study import Study


def test_version(run: Run) -> None:
    assert run("--version") == (0, f"ropewalk {ropewalk.__version__}\n", "")


@pytest.mark.parametrize("name", list(cli.commands))
def test_every_command_has_help_with_an_example(run: Run, name: str) -> None:
    code, out, _ = run(name, "--help")
    assert code == 0
    assert f"ropewalk {name}" in out.split("Example:")[1]


def test_help_loads_nothing_heavy() -> None:
    """Half a second is not a test; what would take it is."""
    code = (
        "import sys\nfrom ropewalk.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print([m for m in ('torch', 'transformers', 'numpy', 'pandas', 'matplotlib', 'pydantic') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"


def test_light_parts_do_not_load_torch() -> None:
    modules = [
        "analysis",
        "figures",
        "report",
        "compare",
        "summary.view",
        "tables",
        "geometry.pca",
        "capture.vectors",
        "results",
        "record",
    ]
    code = (
        f"import sys, {', '.join(f'ropewalk.{module}' for module in modules)}\n"
        "print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_the_python_api_is_about_ten_names() -> None:
    for name in ropewalk.__all__:
        assert getattr(ropewalk, name) is not None
    assert len(ropewalk.__all__) <= 13
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ropewalk.nothing


def test_a_mistake_is_one_line_and_exit_2(run: Run, tmp_path: Path) -> None:
    code, out, err = run("run", str(tmp_path / "none.yaml"))
    assert (code, out) == (2, "")
    assert err == f"ropewalk: no study at {tmp_path / 'none.yaml'}: give the path of a YAML file\n"
    code, _, err = run("analyze", str(tmp_path))
    assert code == 2
    assert "is not a results folder" in err
    assert run("figures", str(tmp_path))[0] == 2
    assert run("frobnicate")[0] == 2


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("ropewalk.studyfile.load_study", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["run", str(tmp_path / "study.yaml")])


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (PermissionError(13, "Permission denied", "a/b"), "a/b cannot be used: the system says 'Permission denied'"),
        (OSError(36, "File name too long", "x" * 999), "cannot be used: the system says 'File name too long'"),
        (OSError(40, "Too many levels of symbolic links", "l"), "l cannot be used: the system says 'Too many levels"),
        (OSError(28, "No space left on device"), "a file cannot be used: the system says 'No space left on device'"),
        (OSError(5, "Input/output error", "a\x1b[2J\nb"), "a\\x1b[2J b cannot be used: the system says 'Input/output"),
        (OSError(18, "Invalid link", "a", None, "b"), "a and b cannot be used"),
        (OSError("only\nwords"), "ropewalk: only words"),
        (MemoryError(), "ropewalk: the memory of this machine ran out: close other programs, or lower"),
        (ropewalk.RopewalkError("says \x1b[2J\rthis\n  and that"), "ropewalk: says \\x1b[2J\\rthis\n  and that"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_the_system_refuses_is_one_line(
    error: Exception, message: str, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("ropewalk.results.analyze", lambda *_, **__: (_ for _ in ()).throw(error))
    code, out, err = run("analyze", str(tmp_path))
    assert (code, out) == (2, "")
    assert message in err
    assert err.replace("\n", "").isprintable()
    assert len(err) < 450


@pytest.mark.parametrize("name", ["a\x1b[2Jb", "a\nb", "d\udcff"])
@pytest.mark.parametrize(
    "words",
    [
        *(["run", "NAME/x"], ["run", "study.yaml", "--results", "NAME"], ["verify", "NAME"], ["figures", "NAME"]),
        *(["inspect", "NAME"], ["export", "results", "NAME", "--to", "npz"], ["doctor", "m", "--statistics", "NAME"]),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_name_that_is_no_text_is_refused_first(
    run: Run, words: list[str], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()
    for command in ([word.replace("NAME", name) for word in words], ["verify", "there"]):
        code, out, err = run(*command)
        assert (code, out) == (2, "")
        assert "cannot be used, as it holds control characters or bytes that are no UTF-8: rename it" in err
        assert err.rstrip("\n").isprintable()
        # And not in a folder of such a name either.
        monkeypatch.chdir(tmp_path / name)


def test_names_of_all_scripts_are_names(tmp_path: Path) -> None:
    for name in ("日本\u3000語", "می\u200cخواهم", "a\u00a0b"):
        check_name(tmp_path / name)
        assert Study(name="s", results=name, checkpoints=({"repo": "a/b", "context": 8},)).results == name


def test_a_terminal_of_few_characters_gets_escapes() -> None:
    code = (
        "from ropewalk.cli import main, cli\ncli.commands['demo'].callback = lambda **_: print('日本')\nmain(['demo'])"
    )
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env=environment)
    assert ended.stdout.strip() == rb"\u65e5\u672c"


def test_the_path_of_a_model_may_be_long(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path
    for _ in range(6):
        folder = folder / ("x" * 200)
    folder.mkdir(parents=True)
    code, _, err = run("inspect", str(folder))
    assert code == 2
    assert err.startswith("ropewalk: ")
    assert "has no config.json" in err


def test_an_interrupt_says_that_nothing_is_lost(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ropewalk.studyfile.load_study", interrupt)
    code, _, err = run("run", str(tmp_path / "study.yaml"))
    assert (code, err.strip()) == (130, "ropewalk: stopped; the same command goes on where it was")


def test_too_few_documents_stop_before_a_model_loads(
    run: Run, study_data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study_data["corpus"]["documents"] = 50
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study_data))
    monkeypatch.setattr("ropewalk.capture.work.load_model", lambda *_: pytest.fail("a model was loaded"))
    code, _, err = run("run", str(tmp_path / "study.yaml"))
    assert code == 2
    assert "only 12 documents of the corpus have 96 tokens and 50 are asked for" in err


def test_inspect_and_doctor(run: Run, model_folder: Path, tmp_path: Path) -> None:
    code, out, _ = run("inspect", str(model_folder))
    assert code == 0
    rows = [line.split() for line in out.splitlines()[2:]]
    assert [row[4] for row in rows] == ["RoPE", "RoPE", "RoPE", "NoPE", "RoPE"]
    assert rows[0] == ["0", "4", "2", "16", "RoPE", "100%", "-"]
    code, out, _ = run("doctor", str(model_folder))
    assert code == 0
    assert [line[:4] for line in out.splitlines()] == ["ok  "] * 5
    code, _, err = run("inspect", str(tmp_path / "nowhere"))
    assert code == 2
    assert "there is no" in err


@pytest.mark.parametrize(
    ("passed", "mark", "sentence"),
    [
        (False, "FAIL", "cannot be trusted under the tap: see the checks that failed above"),
        (None, "open", "could not be proven under the tap: see the checks marked open above"),
    ],
)
def test_doctor_tells_what_failed_from_what_is_open(
    run: Run, model_folder: Path, monkeypatch: pytest.MonkeyPatch, passed: bool | None, mark: str, sentence: str
) -> None:
    from ropewalk.models.proof import Finding

    findings = [Finding("one", True, "well"), Finding("two", passed, "ill")]
    monkeypatch.setattr("ropewalk.models.doctor.examine", lambda _: findings)
    code, out, err = run("doctor", str(model_folder))
    assert (code, out.splitlines()) == (2, ["ok    one: well", f"{mark}  two: ill"])
    assert sentence in err


def test_checkpoints_lists_audits_and_writes_a_study(run: Run, serve: Callable[..., Any], tmp_path: Path) -> None:
    files = {"config.json": b'{"model_type": "gpt_neox", "max_position_embeddings": 2048}', "tokenizer.json": b"{}"}
    branches = {f"step{n}": {**files, "model.safetensors": b"%d" % (n // 2)} for n in (1, 2, 3)}
    serve({"org/pythia": {**branches, "main": files}})
    code, out, _ = run("checkpoints", "org/pythia", "--output", str(tmp_path / "study.yaml"), "--context", "512")
    assert code == 0
    assert "identical" in out
    study = yaml.safe_load((tmp_path / "study.yaml").read_text())
    assert [checkpoint["revision"] for checkpoint in study["checkpoints"]] == ["step1", "step2", "step3"]
    assert study["defaults"]["context"] == 512
    code, out, _ = run("checkpoints", "org/pythia", "--no-audit", "--log-spaced", "2")
    assert code == 0
    assert "step2" not in out
    code, _, err = run("checkpoints", "org/nothing")
    assert (code, len(err.splitlines())) == (2, 1)


def test_demo_and_train_call_what_they_say(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    called: list[Any] = []
    monkeypatch.setattr("ropewalk.pipeline.run_study", lambda study: called.append(study) or study.folder)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {1, 4, 5}, raising=False)
    code, out, _ = run("demo", "--results", str(tmp_path / "here"))
    assert (code, called[0].name, called[0].folder) == (0, "miniature", tmp_path / "here")
    assert (called[0].engine.name, called[0].engine.workers) == ("local", 3)
    assert str(tmp_path / "here" / "report.html") in out
    monkeypatch.setattr("ropewalk.train.train", lambda *arguments, **options: called.append((arguments, options)))
    assert run("train", "--output", str(tmp_path / "model"), "--device", "cpu")[0] == 0
    assert called[1][0] == (None, tmp_path / "model")
    assert called[1][1]["device"] == "cpu"


def test_report_opens_the_page_only_when_asked(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page, opened, works = tmp_path / "report.html", [], True
    monkeypatch.setattr("ropewalk.pipeline.up_to_date", lambda results: SimpleNamespace(report=lambda folder: page))
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or works)
    assert run("report", str(tmp_path)) == (0, f"{page}\n", "")
    assert opened == []
    assert run("report", str(tmp_path), "--open") == (0, f"{page}\n", "")
    assert opened == [page.as_uri()]
    works = False
    code, out, err = run("report", str(tmp_path), "--open")
    assert (code, out) == (2, f"{page}\n")
    assert f"no browser could be started: open {page} yourself" in err
