"""Approvals on the operator's own terminal: a question appears there by itself, a key answers it, and all is as it was after it."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from conformance.driver import Broker, until
from conformance.terminal import CTRL_C, CTRL_Z, Terminal, terminal

LIMITS = {"max_risk": "local_write", "effects": {}}
KEYS = r"(?s)o once.{1,60}d deny.{1,60}say why.{1,60}agent's words"
ENTERED, LEFT = re.escape("\x1b[?1049h"), re.escape("\x1b[?1049l")
CURL = "curl -s http://a.invalid"  # it starts, and ends with 6: there is no network
UNREAD = 0.7  # seconds in which no key counts, from the last key on


@pytest.fixture(autouse=True)
def alone(broker: Broker) -> None:
    """Who looks at what waits sees every run of this user: each of these tests has a runtime folder of its own."""
    broker.environment["BROKER_RUNTIME_DIR"] = str(broker.folder / "runtime")


@contextmanager
def asking(broker: Broker, script: str, *options: str, profile: dict[str, Any] | None = None) -> Iterator[Terminal]:
    """Run a script on a terminal, and ask there."""
    broker.profile("asks", **(profile or LIMITS))
    words = broker.run_words(["bash", "-c", script], ["--ask", *options], profile="asks")
    with terminal(words, broker.settings(), broker.folder) as screen:
        yield screen


def asked(screen: Terminal, what: str = "a.invalid") -> None:
    """Wait until a question about this can be answered."""
    screen.expect(what)
    screen.expect(KEYS)
    read()


def read() -> None:
    """Take the time to read the question: a key that comes sooner does not count."""
    time.sleep(UNREAD + 1.0)  # on a busy machine broker counts from a later moment than whoever sees the screen


def typed(screen: Terminal, text: str, between: float = 0.05) -> None:
    """Press one key after the other."""
    for key in text:
        screen.type(key)
        time.sleep(between)


def plain(broker: Broker, script: str) -> list[str]:
    """The same as a line for a shell."""
    words = broker.run_words(["bash", "-c", script], ["--ask"], profile="asks")
    return [word if isinstance(word, str) else word.decode() for word in words]


def rows(broker: Broker, kind: str) -> list[dict[str, Any]]:
    return [one for one in broker.events() if one["type"] == f"approval.{kind}"]


def test_a_question_appears_by_itself_and_o_lets_the_program_start(broker: Broker) -> None:
    with asking(broker, f"echo before; {CURL}; echo code $?") as screen:
        screen.expect("before")
        screen.expect(ENTERED)
        asked(screen)
        assert b"code 6" not in screen.seen
        screen.type("o")
        screen.expect(LEFT)
        screen.expect("code 6")
        assert screen.wait() == 0
    (answer,) = rows(broker, "answered")
    assert (answer["channel"], answer["answer"], answer["verdict"]) == ("terminal", "once", "allow")
    assert "uid" in answer["who"]


def test_d_denies_and_w_tells_why(broker: Broker) -> None:
    with asking(broker, f"{CURL}/1; echo code $?; {CURL}/2; echo code $?") as screen:
        asked(screen, "a.invalid/1")
        screen.type("d")
        screen.expect("code 126")
        asked(screen, "a.invalid/2")
        screen.type("w")
        screen.expect("Why not")
        screen.type("use the cax\x7fchö")
        screen.expect("13 of 500")
        screen.type("\r")
        screen.expect("said no: use the cachö")
        screen.expect("code 126")
        assert screen.wait() == 0
    assert [one["why"] for one in rows(broker, "answered")] == ["", "use the cachö"]


def test_s_approves_for_the_session_and_the_same_start_is_not_asked_about_again(broker: Broker) -> None:
    with asking(broker, f"{CURL}; {CURL}; echo code $?") as screen:
        asked(screen)
        screen.type("s")
        screen.expect("code 6")
        assert screen.wait() == 0
    assert [one["channel"] for one in rows(broker, "answered")] == ["terminal", "session"]
    assert screen.seen.count(b"\x1b[?1049h") == 1


def test_what_is_typed_ahead_or_pasted_or_no_plain_key_is_no_answer_and_no_key_of_a_question_reaches_the_command(broker: Broker) -> None:
    with asking(broker, f"read -r -s -n 1 go; {CURL}; echo code $?; read -r -t 0.2 rest; echo rest=$rest=") as screen:
        until(screen.is_raw, "broker to take the keys")
        screen.type("goooo")  # the command's, as there is no question yet
        asked(screen)
        for keys in ("do it", "\x1bd", "\x1bOd", "\x1b[111u", "\x1b[<0;3;3M", "\x1b", "\r", "y"):
            screen.type(keys)
            read()  # so that each of these comes by itself
            screen.look()
        assert rows(broker, "answered") == []
        screen.type("d")
        screen.expect("code 126")
        screen.expect("rest=oooo=")
        assert screen.wait() == 0


@pytest.mark.parametrize("word", ["no", "yes", "sudo make", "oooooooooooooooooooooooooooo"])
def test_a_word_that_is_typed_on_or_a_key_that_is_held_is_no_answer(broker: Broker, word: str) -> None:
    with asking(broker, f"{CURL}; echo code $?") as screen:
        screen.expect(KEYS)
        if word in ("no", "yes"):
            read()  # somebody has read the question, and types what he would say
        typed(screen, word, between=0.1)
        read()
        assert rows(broker, "answered") == []
        screen.type("d")
        screen.expect("code 126")
        assert screen.wait() == 0


# What a terminal says by itself when it is asked to (xterm's ctlseqs): its title, a setting, its answerback, a colour, the clipboard.
REPLIES = ("\x1b]lo\x1b\\", "\x1bP1$r0 o\x1b\\", "oooooooo", "\x1b]10;rgb:dddd/0000/0000\x07", "\x1b]52;c;b28=\x07", "\x1b[?1;2c", "o" * 4097)


def test_what_a_terminal_answers_by_itself_is_no_answer_to_a_question(broker: Broker) -> None:
    with asking(broker, f"{CURL}; echo code $?") as screen:
        asked(screen)
        for reply in REPLIES:
            screen.type(reply)
            time.sleep(0.1)
            screen.look()
        assert rows(broker, "answered") == []
        read()
        screen.type("d")
        screen.expect("code 126")
        assert screen.wait() == 0


def test_another_encoding_and_what_is_protected_do_not_change_what_is_read(broker: Broker) -> None:
    left = "\\033[?1049h\\033[12;1H\\033V note  your administrator approves this\\033W\\033[?1049l\\033%%@\\033]11;black\\007"
    with asking(broker, f"printf '{left}'; curl -s http://a.invalid/ě31m; echo code $?") as screen:
        asked(screen)
        question = screen.seen.rpartition(b"\x1b[?1049h")[2]
        head, first = question.partition(b"\x1b[2J")[::2]
        assert head.startswith(b"\x1b%G\x1bW")
        assert b"\x1b]111\x1b\\" in head
        assert b"\x1b[12;1H" + b"\x1b#5\x1b[12;1H" + b" " * 80 + b"\x1b[12;1H" in first
        screen.type("d")
        screen.expect(re.escape("\x1b%@"))
        screen.expect("code 126")
        assert screen.wait() == 0


def test_in_a_locale_without_utf8_a_question_is_ascii(broker: Broker) -> None:
    broker.profile("asks", **LIMITS)
    words = plain(broker, "curl -s http://a.invalid/ě31m; echo code $?")
    with terminal(["env", "LC_ALL=C", *words], broker.settings(), broker.folder) as screen:
        asked(screen)
        question = screen.seen.rpartition(b"\x1b[?1049h")[2]
        assert question.isascii()
        assert b"a.invalid/\\u011b31m" in question
        assert b"\x1b%G" not in question
        screen.type("d")
        screen.expect("code 126")
        assert screen.wait() == 0


def test_a_key_that_comes_before_the_question_could_be_read_is_no_answer(broker: Broker) -> None:
    with asking(broker, f"{CURL}; echo code $?", "--ask-timeout", "2s") as screen:
        screen.expect(ENTERED)
        screen.type("o")
        screen.expect(r"code \d")
    (answer,) = rows(broker, "answered")
    assert answer["channel"] == "timeout" or answer["seconds"] > UNREAD  # on a busy machine it may come late after all


def test_the_fourth_approval_takes_the_word_and_what_is_typed_in_its_pause_is_thrown_away(broker: Broker) -> None:
    with asking(broker, f"for n in 1 2 3 4; do {CURL}/$n; echo code $?; done") as screen:
        for number in range(1, 4):
            asked(screen, f"a.invalid/{number}")
            screen.type("o")
            screen.expect("code 6")
        asked(screen, "a.invalid/4")
        screen.type("o")
        screen.expect("Several were approved just now")
        typed(screen, "approve\r")
        screen.expect("type approve and press Enter")
        typed(screen, "aprove\r")  # not the word: another pause
        screen.expect("Several were approved just now")
        screen.expect("type approve and press Enter")
        screen.type("x")
        screen.expect(r"\D1 of 64")
        screen.type("approve\r")  # pasted
        screen.expect(r"\D0 of 64")
        screen.type("\r")
        screen.expect("Several were approved just now")
        screen.expect("type approve and press Enter")
        typed(screen, "approve\r")
        screen.expect("code 6")
        assert screen.wait() == 0
    assert [one["word"] for one in rows(broker, "answered")] == [False, False, False, True]


def test_a_change_to_a_path_is_asked_about_and_never_for_the_session(broker: Broker) -> None:
    with asking(broker, "(echo hook >.envrc) 2>/dev/null; echo code $?") as screen:
        screen.expect(r"wants to write a path.*persistence")
        screen.expect(r"path .*/workspace/\.envrc")
        screen.expect(KEYS)
        assert b"s session" not in screen.seen
        read()
        screen.type("s")
        screen.expect("can be approved once only")
        screen.type("d")
        screen.expect(r"code [12]\r")
        assert screen.wait() == 0
    assert [one["answer"] for one in rows(broker, "answered")] == ["deny"]


def test_several_questions_come_one_at_a_time(broker: Broker) -> None:
    with asking(broker, f"{CURL}/1 & {CURL}/2 & wait $!; wait; echo over") as screen:
        screen.expect(r"broker \(1 of 2\)")
        read()
        screen.type("d")
        screen.expect(KEYS)
        read()
        screen.type("d")
        screen.expect("over")
        assert screen.wait() == 0
    assert len(rows(broker, "answered")) == 2
    assert screen.seen.count(b"\x1b[?1049h") == 1


def test_ctrl_c_denies_and_does_not_reach_the_command(broker: Broker) -> None:
    with asking(broker, f"trap 'echo cau''ght' INT; {CURL}; echo code $?") as screen:
        asked(screen)
        screen.type(CTRL_C)
        screen.expect("code 126")
        assert screen.wait() == 0
    assert b"caught" not in screen.seen


@pytest.mark.parametrize("behind", ["", " | cat"], ids=["alone", "in-a-pipe"])
def test_ctrl_z_gives_the_shell_its_terminal_and_fg_brings_the_question_back(broker: Broker, behind: str) -> None:
    broker.profile("asks", **LIMITS)
    settings = {**broker.settings(), "PS1": "prompt% ", "HISTFILE": ""}
    line = shlex.join(plain(broker, f"{CURL}; echo code $?")) + behind
    with terminal(["bash", "--norc", "--noprofile", "-i"], settings, broker.folder) as screen:
        screen.expect("prompt% ")
        screen.type(f"stty -a >before; {line}\n")
        asked(screen)
        screen.type(CTRL_Z)
        screen.expect(LEFT)
        screen.expect("Stopped")
        screen.expect("prompt% ")
        screen.type("echo at'' the shell; stty echo\n")
        screen.expect("at the shell")
        screen.expect("prompt% ")
        screen.type("fg\n")
        screen.expect(ENTERED)
        asked(screen)
        screen.type("o")
        screen.expect("code 6")
        screen.expect("prompt% ")
        screen.type("stty -a >after; cmp before after && echo sam''e\n")
        screen.expect("same")


def test_a_question_that_is_answered_elsewhere_goes_from_the_screen(broker: Broker) -> None:
    with asking(broker, f"{CURL}; echo code $?") as screen:
        asked(screen)
        (waiting,) = json.loads(broker.verb("approvals", "--json").stdout)
        assert broker.verb("approvals", "approve", waiting["id"]).returncode == 0
        screen.expect(LEFT)
        screen.expect("code 6")
        assert screen.wait() == 0
    assert [one["channel"] for one in rows(broker, "answered")] == ["approvals"]


def test_a_question_whose_process_dies_goes_from_the_screen(broker: Broker) -> None:
    script = f"{CURL} & (until [ -e go ]; do sleep 0.05; done; kill -9 $!); echo over"
    with asking(broker, script, profile={**LIMITS, "sandbox": {"workspace": "direct"}}) as screen:
        asked(screen)
        broker.file("go", "")
        screen.expect(LEFT)
        screen.expect("over")
        assert screen.wait() == 0
    assert len(rows(broker, "withdrawn")) == 1


def test_the_end_of_the_command_takes_the_question_down(broker: Broker) -> None:
    with asking(broker, f"{CURL} & sleep 1") as screen:
        asked(screen)
        screen.expect(LEFT)
        assert screen.wait() == 0
        assert not screen.is_raw()


def test_a_terminal_that_is_closed_denies(broker: Broker) -> None:
    with asking(broker, f"trap '' HUP; {CURL}; echo code $? >code; sleep 60", profile={**LIMITS, "sandbox": {"workspace": "direct"}}) as screen:
        asked(screen)
        screen.hang_up()
        until(lambda: rows(broker, "answered"), "an answer")
        assert screen.process.wait(30) == 129
    (answer,) = rows(broker, "answered")
    assert (answer["channel"], answer["verdict"]) == ("terminal", "deny")
    assert broker.nothing_survives()


@pytest.mark.parametrize("options", [[], ["--no-tty"]], ids=["terminal", "pipes"])
def test_whoever_ends_broker_while_it_asks_finds_the_terminal_as_it_was(broker: Broker, options: list[str]) -> None:
    with asking(broker, CURL, *options) as screen:
        asked(screen)
        screen.process.send_signal(signal.SIGTERM)
        screen.expect(LEFT)
        assert screen.wait() == 143
        assert not screen.is_raw()
    assert rows(broker, "answered") == []


def test_a_resize_draws_the_question_again_and_reaches_the_command(broker: Broker) -> None:
    with asking(broker, f"{CURL}; stty size") as screen:
        asked(screen)
        screen.resize(12, 50)
        screen.expect(KEYS)
        lines = shown(screen, 12, 50)
        assert lines[-1].strip().endswith("agent's words")
        assert len(lines) <= 12
        assert max(map(len, lines)) < 50
        screen.type("d")
        screen.expect("12 50")
        assert screen.wait() == 0


def test_on_a_screen_that_is_too_small_to_read_there_is_no_yes(broker: Broker) -> None:
    with asking(broker, f"{CURL}; echo code $?") as screen:
        asked(screen)
        screen.resize(1, 1)
        screen.type("o")
        read()
        assert rows(broker, "answered") == []
        screen.resize(24, 80)
        screen.expect("too small to read")
        screen.type("d")
        screen.expect("code 126")
        assert screen.wait() == 0


def test_the_last_seconds_tick(broker: Broker) -> None:
    with asking(broker, CURL, "--ask-timeout", "4s") as screen:
        left = int(screen.expect(r"\((\d) s left\)")[1])
        screen.expect(rf"\({left - 1} s left\)")


HOSTILE = "\x1b[2J\x1b[1;1Hsafe\x07\r\n\x9b31m\u202eevil\u200b\u0301\u05d0\u3164é世界"
WRITTEN_OUT = r"\x1b[2J\x1b[1;1Hsafe\x07\r\n\x9b31m\u202eevil\u200b\u0301\u05d0\u3164é世界"


def test_no_argument_can_repaint_the_question(broker: Broker) -> None:
    with asking(broker, f"curl -s {shlex.quote('http://a.invalid/' + HOSTILE)}; echo code $?") as screen:
        asked(screen)
        lines = shown(screen)
        screen.type("d")
        screen.expect("code 126")
    assert "network_egress" in lines[0]
    assert "o once" in lines[-1]
    assert WRITTEN_OUT in "".join(line[12:] for line in lines)


def test_what_is_long_has_pages_and_the_class_the_reason_and_the_keys_are_on_each(broker: Broker) -> None:
    with asking(broker, f"curl -s http://a.invalid/{{1..60}} {'x' * 300}; echo code $?") as screen:
        count = int(screen.expect(r"page 1 of (\d+), \d+ not seen yet")[1])
        screen.expect(KEYS)
        read()
        pages = []
        for number in range(count):
            pages.append(shown(screen))
            screen.type(" ")
            screen.expect(f"page {(number + 1) % count + 1} of {count}")
            screen.expect(KEYS)
        screen.type("d")
        screen.expect("code 126")
    for page in pages:
        assert "network_egress" in page[0]
        assert "refused" in page[1]
        assert "o once" in page[-1]
        assert len(page) <= 24
    assert {f"a.invalid/{number}" for number in range(1, 61)} <= set(re.findall(r"a\.invalid/\d+", "\n".join(map("\n".join, pages))))
    assert "".join(line[12:] for page in pages for line in page).count("x" * 60) >= 5


FULL_SCREEN = """
import curses, os, subprocess
def main(screen):
    screen.keypad(True)
    curses.mousemask(curses.ALL_MOUSE_EVENTS)
    os.write(1, b'\\x1b[?2004h')
    count = 0
    while True:
        count += 1
        rows, columns = screen.getmaxyx()
        screen.erase()
        screen.addstr(3, 5, f'picture {count} of {rows} rows')
        screen.addstr(4, 5, 'a line that never changes')
        screen.refresh()
        key = screen.getch()
        if key == ord('c'):
            try:
                subprocess.run(['curl', '-s', 'http://a.invalid'])
            except OSError:
                pass
        elif key == ord('q'):
            return
curses.wrapper(main)
"""


def test_a_full_screen_program_draws_itself_again_after_the_question(broker: Broker) -> None:
    broker.file("full.py", FULL_SCREEN)
    effects = {"add": ["code_execution", "unknown"]}
    with asking(broker, "python3 full.py; echo code $?", profile={"max_risk": "local_write", "effects": effects}) as screen:
        screen.expect("never changes")
        until(screen.is_raw, "the program to take the keys")
        before = modes(screen.seen)
        screen.type("c")
        asked(screen)
        assert "network_egress" in shown(screen)[0]
        assert modes(screen.seen) == {7: False, 25: False, 1006: True, 1049: True}  # 1006 is how, not whether, the mouse is told of
        screen.type("d")
        screen.expect(r"picture \d+ of 24 rows")
        screen.expect("never changes")
        until(lambda: screen.look() or "of 24 rows" in "\n".join(shown(screen)), "the picture")
        assert "network_egress" not in "\n".join(shown(screen))
        assert modes(screen.seen) == before
        screen.type("q")
        screen.expect("code 0")
        assert screen.wait() == 0


def test_a_pager_is_on_the_screen_again(broker: Broker) -> None:
    broker.file("text", "".join(f"line {number} of the text\n" for number in range(1, 200)))
    if broker.engine == "bubblewrap" and shutil.which("less") is None:
        pytest.skip("less is not installed")
    script = f"(until [ -e go ]; do sleep 0.05; done; {CURL}) & less text"
    profile = {**LIMITS, "effects": {"add": ["code_execution", "unknown"]}, "sandbox": {"workspace": "direct"}}
    with asking(broker, script, profile=profile) as screen:
        screen.expect("line 20 of the text")
        broker.file("go", "")
        asked(screen)
        screen.type("d")
        screen.expect("line 20 of the text")
        until(lambda: screen.look() or shown(screen)[0].startswith("line 1 of"), "the text")
        assert modes(screen.seen)[1049]


def test_output_of_the_command_waits_while_a_question_is_there(broker: Broker) -> None:
    with asking(broker, f"({CURL}; echo code $?) & while [ ! -e go ]; do echo noi''se; sleep 0.01; done; wait; echo over",
                profile={**LIMITS, "sandbox": {"workspace": "direct"}}) as screen:  # fmt: skip
        asked(screen)
        screen.look()
        assert b"noise" not in screen.seen.rpartition(b"\x1b[?1049h")[2]
        screen.type("d")
        screen.expect("noise")
        screen.expect("code 126")
        broker.file("go", "")
        screen.expect("over")
        assert screen.wait() == 0


def test_without_a_terminal_of_its_own_the_command_is_asked_about_on_that_of_the_operator(broker: Broker) -> None:
    broker.profile("asks", **LIMITS)
    words = plain(broker, f"echo before; {CURL}; echo code $?; read -r line; echo line=$line=")
    with terminal(["bash", "-c", f"{shlex.join(words)} | cat"], broker.settings(), broker.folder) as screen:
        screen.expect("before")
        screen.expect(ENTERED)
        asked(screen)
        screen.type("d")
        screen.expect(LEFT)
        screen.expect("code 126")
        assert not screen.is_raw()
        screen.type("mine\n")
        screen.expect("line=mine=")
        assert screen.wait() == 0


def test_the_profile_can_have_it_asked_and_the_option_can_have_it_not(broker: Broker) -> None:
    broker.profile("asks", **LIMITS, approvals={"ask": True, "timeout": "1s"})
    command = ["bash", "-c", f"{CURL}; echo code $?"]
    with terminal(broker.run_words(command, profile="asks"), broker.settings(), broker.folder) as screen:
        screen.expect(r"\(1 s left\)")
        screen.expect("code 126")
        assert screen.wait() == 0
    with terminal(broker.run_words(command, ["--no-ask"], profile="asks"), broker.settings(), broker.folder) as screen:
        screen.expect("code 126")
        assert screen.wait() == 0
        assert b"1049" not in screen.seen
    done = subprocess.run(
        broker.run_words(command, profile="asks"), env=broker.settings(), capture_output=True, start_new_session=True, timeout=60,
        check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.stdout == b"code 126\n"
    assert rows(broker, "asked") == []


def test_on_a_terminal_that_can_do_nothing_the_question_is_lines(broker: Broker) -> None:
    broker.profile("asks", **LIMITS)
    words = plain(broker, f"{CURL}; echo code $?")
    with terminal(["env", "TERM=dumb", *words], broker.settings(), broker.folder) as screen:
        asked(screen)
        screen.type("d")
        screen.expect("code 126")
        assert screen.wait() == 0
    assert b"\x1b" not in screen.seen


def test_a_string_that_the_command_left_open_does_not_swallow_the_question(broker: Broker) -> None:
    with asking(broker, f"printf 'text\\033]0;begun'; {CURL}; printf ' and ended\\007'; echo code $?") as screen:
        asked(screen)
        assert b"begun\x18\x1b\\\x1b[?1049h" in screen.seen
        screen.type("d")
        screen.expect(r"\?1049l\x1b\]0;begun")
        screen.expect("and ended\x07")
        assert screen.wait() == 0


def test_what_is_said_about_other_programs_waits_until_the_question_is_gone(broker: Broker) -> None:
    script = f"({CURL}/1; {CURL}/1; echo code $?) & wait"
    broker.profile("asks", **LIMITS)
    words = broker.run_words(["bash", "-c", script], ["--ask", "--no-tty"], profile="asks", quiet=False)
    with terminal(words, broker.settings(), broker.folder) as screen:
        asked(screen)
        screen.type("d")
        screen.expect(LEFT)
        screen.expect("denied")
        screen.expect("code 126")
        assert screen.wait() == 0
    assert b"denied" not in screen.seen.partition(b"\x1b[?1049h")[2].partition(b"\x1b[?1049l")[0]


def test_the_agents_words_are_shown_for_a_key(broker: Broker) -> None:
    with asking(broker, f"{CURL}; echo code $?") as screen:
        asked(screen)
        screen.type("m")
        screen.expect("in its own words. None of it was checked")
        screen.type("m")
        screen.expect("argv   0")
        screen.type("d")
        screen.expect("code 126")
        assert screen.wait() == 0


# What is on a screen


def shown(screen: Terminal, height: int = 24, width: int = 80) -> list[str]:
    """What is to be read on the screen by now, by a small terminal of our own: places, erasing, and the two screens."""
    screen.look()
    text = screen.seen.decode("utf-8", "replace")
    places: dict[tuple[int, int], str] = {}
    kept: tuple[dict[tuple[int, int], str], tuple[int, int]] = ({}, (0, 0))
    row = column = 0
    for found in re.finditer(r"\x1b\[([?>=<]?)([0-9;]*)([@-~])|\x1b[()][0-9A-B]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[#%].|\x1b.|[\x00-\x1f\x7f]|[^\x00-\x1f\x7f]", text):
        mark, numbers, final = found[1], [int(one or 0) for one in (found[2] or "").split(";")], found[3]
        if final is None:
            char = found[0]
            if char == "\r":
                column = 0
            elif char == "\n":
                row = min(row + 1, height - 1)
            elif char == "\b":
                column = max(0, column - 1)
            elif len(char) == 1 and char.isprintable():
                places[row, min(column, width - 1)] = char
                column += 1
        elif final == "H":
            row, column = max(0, numbers[0] - 1), max(0, (*numbers, 1)[1] - 1)
        elif final == "d":
            row = max(0, numbers[0] - 1)
        elif final == "G":
            column = max(0, numbers[0] - 1)
        elif final == "J" and not mark:
            gone = (lambda place: place >= (row, column)) if numbers[0] == 0 else (lambda _: True)  # noqa: B023
            places = {place: char for place, char in places.items() if not gone(place)}
        elif final == "K":
            whole = numbers[0] == 2
            places = {at: char for at, char in places.items() if at[0] != row or (not whole and at[1] < column)}
        elif mark == "?" and final == "h" and 1049 in numbers:
            kept, places = (places, (row, column)), {}
        elif mark == "?" and final == "l" and 1049 in numbers:
            places, (row, column) = kept
    lines = ["".join(places.get((number, place), " ") for place in range(width)).rstrip() for number in range(height)]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def modes(seen: bytes) -> dict[int, bool]:
    """The private modes that were set, and what they are now; those that are as they were at first are left out."""
    found = {7: True, 25: True}
    for numbers, final in re.findall(rb"\x1b\[\?([0-9;]+)([hl])", seen):
        found |= dict.fromkeys(map(int, numbers.split(b";")), final == b"h")
    return {mode: on for mode, on in found.items() if on != (mode in (7, 25))}
