"""What a project's files say of its commands, and what of that one would list."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from broker.profiles.detect import detect


def put(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def usual(folder: Path) -> list[str]:
    return [each.command for each in detect(folder) if each.usual]


@pytest.mark.parametrize(
    ("files", "commands"),
    [
        ({"package.json": '{"scripts": {"test": "x", "lint": "x", "deploy": "x"}}'}, ["npm test", "npm run test", "npm run lint"]),
        ({"package.json": '{"scripts": {"build": "x"}}', "pnpm-lock.yaml": ""}, ["pnpm run build"]),
        ({"Makefile": "X := 1\nall: a\ntest:\n\tgo test\ndeploy: x\n.PHONY: all\n"}, ["make", "make all", "make test"]),
        ({"go.mod": "module x"}, ["go build ./...", "go test ./...", "go vet ./..."]),
        ({"Cargo.toml": ""}, ["cargo build", "cargo test", "cargo check"]),
        ({"pyproject.toml": "[tool.pytest.ini_options]\n[tool.tox]\n"}, ["pytest", "pytest -q", "python3 -m pytest", "python3 -m pytest -q", "tox"]),
        ({"pyproject.toml": "[project]\n", "tests/x": ""}, ["python3 -m unittest"]),
        ({"tox.ini": ""}, ["tox"]),
        ({"noxfile.py": ""}, ["nox"]),
        ({"build.gradle.kts": ""}, ["gradle --offline build", "gradle --offline test", "gradle --offline check"]),
        ({"pom.xml": ""}, ["mvn -o compile", "mvn -o test", "mvn -o verify"]),
        ({"justfile": "test:\n  x\nvar := 1\nship:\n  y\n"}, ["just test"]),
        ({"composer.json": '{"scripts": {"test": "x"}}'}, ["composer test"]),
    ],
)  # fmt: skip
def test_each_kind_of_project_has_its_commands(tmp_path: Path, files: dict[str, str], commands: list[str]) -> None:
    put(tmp_path, files)
    assert usual(tmp_path) == commands


def test_what_ci_runs_is_shown_and_never_taken_by_itself(tmp_path: Path) -> None:
    put(tmp_path, {".github/workflows/ci.yml": "steps:\n - run: npm test\n - run: npm ci\n - run: ./deploy.sh now\n - run: make a && make b\n - run: git push --force\n"})
    found = {each.command: each for each in detect(tmp_path)}
    assert usual(tmp_path) == []
    assert found["npm test"].why_not == ""
    assert found["npm ci"].why_not == "it is install"
    assert "rewrite" in found["./deploy.sh now"].why_not
    assert "destructive" in found["git push --force"].why_not
    assert "make a && make b" not in found, "no entry can be that"


def test_a_command_that_the_project_names_itself_stays_usual_when_ci_has_it_too(tmp_path: Path) -> None:
    put(tmp_path, {"package.json": '{"scripts": {"test": "x"}}', ".gitlab-ci.yml": "test:\n  script:\n    - npm test\n"})
    assert usual(tmp_path) == ["npm test", "npm run test"]


def test_hostile_files_are_passed_over(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "Cargo.toml")
    (tmp_path / "go.mod").symlink_to("/etc/passwd")
    (tmp_path / "composer.json").write_text("[" * 100_000)
    (tmp_path / "package.json").write_text('{"scripts": {"test\\u001b[2J": "x", "x; rm -rf /": "x", "test": "x"}}')
    assert usual(tmp_path) == ["npm test", "npm run test"]
    assert all(each.command.isprintable() for each in detect(tmp_path))
