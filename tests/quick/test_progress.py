"""Progress: a bar on a terminal, plain lines in a log."""

import sys
from types import SimpleNamespace

import pytest

from ropewalk import progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time as the code under test sees it; change it by `clock[0] = ...`."""
    now = [100.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_lines_in_a_log_come_at_intervals(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with progress.listening(), progress.Progress("S1 (1/2)", 10_000, 4_000) as shown:
        clock[0] += 10
        shown.advance(1_000, "shard 2/8")
        clock[0] += 10
        shown.advance(1_000, "shard 3/8")
        clock[0] += 1
        shown.advance(4_000)
    captured = capsys.readouterr()
    assert captured.out == ""
    # What was done before counts towards the whole and not towards the speed.
    assert captured.err == "S1 (1/2): shard 3/8, 6,000 of 10,000 tokens, 100 tokens/s, 0:40 left\n"


def test_a_terminal_has_a_bar_and_no_lines(
    clock: list[float], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress.listening(), progress.Progress("S1", 10_000) as shown:
        clock[0] += 100
        shown.advance(5_000, "shard 1/2")
        progress.logger.info("a line")
    err = capsys.readouterr().err
    assert "S1:" in err
    assert "5.00k/10.0k" in err
    assert "shard 1/2" in err
    assert "a line\n" in err
    assert " of 10,000 tokens" not in err


@pytest.mark.parametrize(("done", "left"), [(0, "unknown time left"), (1, "2:46:39 left"), (9_000, "0:01 left")])
def test_time_left(clock: list[float], done: int, left: str) -> None:
    meter = progress.Meter(10_000)
    clock[0] += 1 if done < 9_000 else 9
    meter.add(done)
    assert meter.left == left


def test_nobody_listening_means_silence(clock: list[float], capfd: pytest.CaptureFixture[str]) -> None:
    with progress.Progress("S1", 10_000) as shown:
        clock[0] += 100
        shown.advance(5_000)
    progress.logger.info("a line")
    assert capfd.readouterr() == ("", "")


def test_listening_ends_with_the_block(capsys: pytest.CaptureFixture[str]) -> None:
    before = (progress.logger.level, progress.logger.propagate, list(progress.logger.handlers))
    with progress.listening():
        progress.logger.info("heard")
    progress.logger.info("not heard")
    assert capsys.readouterr().err == "heard\n"
    assert (progress.logger.level, progress.logger.propagate, list(progress.logger.handlers)) == before


def test_a_log_of_ones_own_hears_it_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="ropewalk")
    progress.logger.info("a line")
    assert caplog.messages == ["a line"]


def test_text_from_elsewhere_does_not_steer_the_terminal(
    clock: list[float], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = "\x1b[2J\nforged\u202e"
    with progress.listening(), progress.Progress(bad, 10_000) as shown:
        clock[0] += 100
        shown.advance(1, bad)
        progress.logger.info("%s", bad)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all(line.isprintable() for line in lines)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress.listening(), progress.Progress(bad, 10_000) as shown:
        shown.advance(1, bad)
    err = capsys.readouterr().err
    assert "\x1b[2J" not in err
    assert "\u202e" not in err
