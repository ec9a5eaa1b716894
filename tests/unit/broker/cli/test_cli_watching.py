"""`--watch`: redrawn in place, through the absence of a node, until Ctrl-C; and a line a time for programs."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from clusterbroker.broker.cli.exit_codes import FAILED, UNREACHABLE, Failed
from clusterbroker.broker.cli.watching import watch, watch_lines

ROOT = Path(__file__).resolve().parents[4]


class Rounds:
    """Answers one after the other, and Ctrl-C after the last one."""

    def __init__(self, *answers: str | Failed) -> None:
        self.answers = list(answers)
        self.pauses_s: list[float] = []

    def __call__(self) -> str:
        answer = self.answers.pop(0)
        if isinstance(answer, Failed):
            raise answer
        return answer

    def pause(self, seconds: float) -> None:
        self.pauses_s.append(seconds)
        if not self.answers:
            raise KeyboardInterrupt


AWAY = Failed("the node is away", UNREACHABLE)


def test_a_line_of_json_each_time(capsys: pytest.CaptureFixture[str]) -> None:
    rounds = Rounds('{"n": 1}', AWAY, '{"n": 2}')
    watch_lines(rounds, 0.5, rounds.pause)
    told = capsys.readouterr()
    assert told.out == '{"n": 1}\n{"n": 2}\n'
    assert told.err == "clusterbroker: the node is away\n"
    assert rounds.pauses_s == [0.5, 0.5, 0.5]


@pytest.mark.parametrize("answers", [(AWAY,), ("1", Failed("not you", FAILED))])
def test_what_ends_a_watch(answers: tuple[str | Failed, ...]) -> None:
    rounds = Rounds(*answers)
    with pytest.raises(Failed):
        watch_lines(rounds, 1, rounds.pause)
    rounds = Rounds(*answers)
    with pytest.raises(Failed):
        watch(lambda: Text(rounds()), 1, Console(file=io.StringIO()), rounds.pause)


def test_a_terminal_is_redrawn_in_place() -> None:
    rounds, out = Rounds("first", AWAY, "third"), io.StringIO()
    watch(lambda: Text(rounds()), 1, Console(file=out, force_terminal=True, width=60), rounds.pause)
    shown = out.getvalue()
    assert shown.count("first") == 2, "the last answer stays while the node is away"
    assert "\x1b[1A" in shown or "\x1b[2K" in shown, "the cursor goes up and the line is taken away"
    assert shown.index("the node is away") < shown.index("third")


def _as_in_a_terminal() -> None:
    """Shells start what stands before a `&` without SIGINT, and with it these tests."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_is_a_good_end(served, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    words = [sys.executable, "-m", "clusterbroker.broker.cli.main", "queues", "list", "--json", "--watch", "0.1"]
    words += ["--data-dir", str(served.directory)]
    process = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ,
        preexec_fn=_as_in_a_terminal,
    )
    assert process.stdout is not None
    for _ in range(3):
        assert {row["name"] for row in json.loads(process.stdout.readline())} >= {"busy", "limited"}
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (0, ""), out
