"""Known faults: each is one, in a file that can still be read, and the same again for the same seed."""

from __future__ import annotations

import ast
import random
from collections.abc import Mapping

import pytest

from broker.panel.defects import (
    FAULTS,
    Files,
    emptied_test_command,
    harmless_remark,
    hidden_call,
    removed_assertion,
    skipped_test,
    weakened_check,
)

PYTHON = b"# a == b\n\ndef allowed(user):\n    return user.level >= 3\n"
TEST = b"def test_it():\n    value = 1\n    assert value == 1\n"
GO = b"package sum\n\nfunc Is(a int) bool {\n\treturn a == 3\n}\n"
MAKEFILE = b"all: test\n\ntest: build\n\tgo test ./...\n\tgo vet ./...\n\nbuild:\n\tgo build ./...\n"
GO_TEST = b"package sum\n\nfunc TestSum(t *testing.T) {\n\tif Sum(1, 2) != 3 {\n\t\tt.Fail()\n\t}\n}\n"


def files(changed: Mapping[str, bytes], others: Mapping[str, bytes] | None = None, seed: int = 1) -> Files:
    everything = {**changed, **(others or {})}
    return Files(list(changed), list(others or {}), everything.get, random.Random(seed))


def test_a_check_is_weakened_and_not_a_comment() -> None:
    found = weakened_check(files({"code.py": PYTHON}))

    assert found is not None
    assert (found.path, found.line) == ("code.py", 4)
    assert b"user.level > 3" in found.content and found.content.startswith(b"# a == b")
    ast.parse(found.content)


def test_an_equality_is_turned_round() -> None:
    found = weakened_check(files({"sum.go": GO}))

    assert found is not None and b"a != 3" in found.content


@pytest.mark.parametrize(("name", "text", "gone"), [("test_it.py", TEST, b"assert"), ("sum_test.go", GO_TEST, b"t.Fail")])
def test_an_assertion_goes_out_of_a_test(name: str, text: bytes, gone: bytes) -> None:
    found = removed_assertion(files({"code.py": b"assert x\n", name: text}))

    assert found is not None and found.path == name
    assert gone in text and gone not in found.content
    if name.endswith(".py"):
        ast.parse(found.content)


@pytest.mark.parametrize(
    ("name", "text", "new"),
    [
        ("test_it.py", TEST, b"def test_it():\n    return\n    value = 1\n"), ("sum_test.go", GO_TEST, b"testing.T) {\n\tt.SkipNow()\n\tif Sum"),
        ("sum.test.ts", b"describe('x', () => {\n  it('adds', () => {\n    expect(1).toBe(1)\n  })\n})\n", b"\n  it.skip('adds', () => {\n"),
    ],
)  # fmt: skip
def test_a_test_is_skipped(name: str, text: bytes, new: bytes) -> None:
    found = skipped_test(files({"code.py": PYTHON, name: text}))

    assert found is not None and found.path == name
    assert new in found.content and new not in text
    if name.endswith(".py"):
        ast.parse(found.content)


@pytest.mark.parametrize(
    ("name", "text", "line", "content"),
    [
        ("Makefile", MAKEFILE, 4, b"all: test\n\ntest: build\n\t@true\n\nbuild:\n\tgo build ./...\n"),
        ("web/package.json", b'{\n  "scripts": {\n    "test": "vitest \\"a\\"",\n    "x": "y"\n  }\n}\n', 3,
         b'{\n  "scripts": {\n    "test": "true",\n    "x": "y"\n  }\n}\n'),
    ],
)  # fmt: skip
def test_a_test_command_is_emptied(name: str, text: bytes, line: int, content: bytes) -> None:
    found = emptied_test_command(files({"code.py": PYTHON}, {name: text}))

    assert found is not None
    assert (found.path, found.line, found.content) == (name, line, content)


@pytest.mark.parametrize("name", ["code.py", "main.js", "run.sh", "main.ts", "main.rb"])
def test_a_call_is_hidden_in_a_program(name: str) -> None:
    found = hidden_call(files({name: b"x = 1\n"}))

    assert found is not None and b"198.51.100." in found.content and found.content.startswith(b"x = 1\n")


def test_a_call_in_go_is_a_file_of_its_own_in_the_same_package() -> None:
    found = hidden_call(files({"sum/sum.go": GO}))

    assert found is not None
    assert found.path == "sum/sum_metrics.go" and found.content.startswith(b"package sum\n")


def test_the_change_is_seeded_before_the_rest_of_the_workspace() -> None:
    found = weakened_check(files({"changed.py": PYTHON}, {f"other{number}.py": PYTHON for number in range(20)}))

    assert found is not None and found.path == "changed.py"


def test_where_there_is_no_place_there_is_no_fault() -> None:
    empty = files({"README.md": b"a == b\n"})

    assert weakened_check(empty) is None and removed_assertion(empty) is None and hidden_call(empty) is None
    assert harmless_remark(empty) is None and skipped_test(empty) is None and emptied_test_command(empty) is None


def test_a_remark_changes_nothing() -> None:
    found = harmless_remark(files({"code.py": PYTHON}))

    assert found is not None
    assert ast.dump(ast.parse(found.content)) == ast.dump(ast.parse(PYTHON))


@pytest.mark.parametrize("kind", FAULTS)
def test_the_same_seed_puts_the_same_fault_in_the_same_place(kind: str) -> None:
    sources = {"code.py": PYTHON, "sum.go": GO, "test_it.py": TEST, "sum_test.go": GO_TEST, "Makefile": MAKEFILE}

    assert FAULTS[kind](files(sources, seed=3)) == FAULTS[kind](files(sources, seed=3))
    assert FAULTS[kind](files(sources)) is not None
