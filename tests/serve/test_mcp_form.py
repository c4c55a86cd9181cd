"""What a form for a client's reader says: all of the question, or that something was left out."""

from __future__ import annotations

from typing import Any

from broker.serve.mcp_ask import text_of

START: dict[str, Any] = {
    "approval": 1, "task": "root", "tool": "exec", "what": "curl x", "class": "network_egress", "effects": ["network_egress"],
    "refused": ["network_egress"], "rule": "program.curl", "reason": "no", "reasons": [], "sha256": "ab", "pid": 7,
    "by": ["/usr/bin/bash", "/usr/bin/make"], "argv": ["curl", "x\n>> y"], "path": "/usr/bin/curl", "program": "/usr/bin/curl", "cwd": "/w",
    "env": [], "files": [{"word": 1, "path": "/w/x", "kind": "file", "to": "/w/y", "sha256": "cd"}], "files_left_out": 3,
    "words_not_looked_up": 2, "shell": {"text": "make\ncurl x; ls", "start": 5, "end": 11, "cut": True}, "session": True, "word": "",
    "seconds": 0.0, "left": 9.0,
}  # fmt: skip


def test_a_form_has_what_the_other_channels_have_and_says_what_it_leaves_out() -> None:
    lines = text_of(START).split("\n")

    assert "argv 1: x\\n>> y" in lines
    assert "argument 1 names: /w/x, which leads to /w/y (sha256 cd)" in lines
    assert "asked by process 7: /usr/bin/bash, started by /usr/bin/make" in lines
    assert lines[-5:] == ["in the shell text:", "   make", ">> curl x", "   ; ls", "… there is more of it"]
    assert {"files left out: 3", "words not looked up: 2"} < set(lines)


def test_a_form_of_a_change_says_how_large_it_is_and_what_is_not_shown() -> None:
    diff = {"bytes": 9, "bytes_before": 4, "lines": ["-a", "+b"], "added": 500, "removed": 1, "lines_left_out": 499}
    row = {name: value for name, value in START.items() if name not in ("argv", "shell", "files", "by")}
    lines = text_of({**row, "tool": "write_file", "action": "write", "path": "/w/.envrc", "diff": diff}).split("\n")

    assert lines[-4:] == ["change: 9 bytes (4 before)", "  -a", "  +b", "… and 499 more lines"]
