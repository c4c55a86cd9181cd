"""`broker profile check`: what is wrong in files, and what is probably not meant, each with its place and a remedy.

Exit code 65 if a profile cannot be used; 1 with --strict if there is a warning; else 0.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker.errors import ProfileError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.cli.terminal import Colours
    from broker.profiles.check import Checked

STYLES = {"error": "red", "warning": "yellow", "note": "cyan"}


def run(args: argparse.Namespace) -> int:
    """Do it."""
    from broker.cli.profile_programs import finder
    from broker.cli.terminal import Colours
    from broker.profiles.check import check_file
    from broker.profiles.finding import Severity
    from broker.profiles.load import rules_for

    look = finder(args.programs)
    checked = [
        each
        for word in args.files
        for file, name in (_meant(word),)
        for each in check_file(file.absolute(), rules_for(None), look)
        if name in ("", each.name)
    ]
    if args.json:
        print(json.dumps([as_data(each) for each in checked], indent=2))
    else:
        for line in lines_of(checked, Colours(sys.stdout)):
            print(line)
    worst = max((each.worst for each in checked if each.worst is not None), default=Severity.NOTE)
    if worst is Severity.ERROR:
        return ProfileError.exit_code
    return 1 if args.strict and worst is Severity.WARNING else 0


def _meant(word: Path) -> tuple[Path, str]:
    """Return the file that a word means, and which profile of it ('': all). A file wins over a profile of that name."""
    from broker.profiles.load import list_profiles

    if not os.path.lexists(word) and "/" not in str(word) and word.suffix not in (".toml", ".json"):
        for each in list_profiles():
            if each.name == str(word):
                return Path(each.source), each.name
    return word, ""


def as_data(checked: Checked) -> dict[str, Any]:
    """Return one profile's report as plain data."""
    from broker.profiles.finding import Severity

    error = next((each.text for each in checked.findings if each.severity is Severity.ERROR), None)
    return {
        "name": checked.name,
        "source": str(checked.source),
        "error": error,
        "findings": [each.as_dict() for each in checked.findings],
    }


def lines_of(checked: Iterable[Checked], colours: Colours) -> Iterable[str]:
    """Yield the report, one line a finding, as compilers write them: editors know where to go."""
    from broker.cli.terminal import escape
    from broker.profiles.finding import Severity

    for each in checked:
        file = escape(_short(str(each.source)))
        if each.worst is not Severity.ERROR:
            count = len(each.findings)
            said = f", {count} {'remark' if count == 1 else 'remarks'}" if count else ""
            yield f"{colours.paint('ok', 'green')}  {each.name}  {file}{said}"
        for finding in each.findings:
            where = f"{file}:{finding.line}:{finding.column}" if finding.line else file
            label = finding.severity.label
            remedy = f". {finding.remedy[:1].upper()}{finding.remedy[1:]}" if finding.remedy else ""
            yield f"{where}: {colours.paint(label, STYLES[label])}: {escape(finding.text)}{escape(remedy)} [{finding.rule}]"


def _short(path: str) -> str:
    """Return the path from here, if it lies below."""
    here = os.getcwd().rstrip("/") + "/"
    return path.removeprefix(here)
