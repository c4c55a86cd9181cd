"""`broker events verify`: whether the record is as it was written, and whether all of it is there; and checkpoints."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from broker import exit_codes
from broker.cli.terminal import Colours, escape
from broker.errors import UsageError
from broker.record import event
from broker.record.run_files import find_run, journal_path, list_runs

if TYPE_CHECKING:
    from broker.record.chain import ChainRecord
    from broker.record.checkpoint import Signed
    from broker.record.evidence import Finding

WORDS = ("verify", "key", "checkpoint", "schema")  # what may follow `broker events` and is done here
EXAMPLES = """\
broker events verify                        # every run: is it as it was written, and is it all there?
broker events key new                       # a key of the operator's, to sign checkpoints with
broker events checkpoint >/elsewhere/today  # sign what is there now; a copy kept elsewhere shows a replaced record
broker events verify --key audit.key.pub    # and hold it against what that key signed
broker events schema                        # the JSON Schema of the events"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that only these words take."""
    parser.add_argument(
        "--key", type=Path, metavar="FILE", help="checkpoint: the private key to sign with; verify: the public key that signed"
    )
    parser.add_argument(
        "--checkpoint", type=Path, metavar="FILE", help="verify: a checkpoint that was kept elsewhere, to compare with"
    )


def run(state: Path, word: str, rest: list[str], args: argparse.Namespace) -> int:
    """Do what the word says."""
    match word, rest:
        case "verify", _:
            return _verify(state, rest, args)
        case "key", ["new" | "show" as what, *files] if len(files) < 2:
            return _key(what, Path(files[0]) if files else None, as_json=args.json)
        case "checkpoint", []:
            return _checkpoint(state, args.key)
        case "schema", []:
            from broker.record.schema import schema_text

            print(schema_text(), end="")
            return exit_codes.OK
        case "key", _:
            raise UsageError("what about the key? broker events key new [FILE], or: broker events key show [FILE]")
        case _:
            raise UsageError(f"`broker events {word}` takes no {rest[0]!r}. Try: broker events --help")


# --- verifying


def _verify(state: Path, words: list[str], args: argparse.Namespace) -> int:
    from broker.record.chain import Chain
    from broker.record.evidence import examine

    if args.all and words:
        raise UsageError("name runs or --all, not both")
    paths = [_path(state, word) for word in words]
    if not words and not list_runs(state) and not Chain(state).path.exists():
        raise UsageError(f"there are no runs in {state / 'runs'} yet")
    colours = Colours(sys.stdout)
    code = exit_codes.OK
    for finding in examine(state, paths or None):
        if not finding.ok:
            code = exit_codes.TAMPERED
        print(_run_json(finding) if args.json else _run_line(finding, colours))
    record = Chain(state).read()
    signed, problems = _held_against_keys(record, args)
    if problems:
        code = exit_codes.TAMPERED
    if problems or signed or not words:
        for line in (
            [_chain_json(state, record, signed, problems)] if args.json else _chain_lines(record, signed, problems, colours)
        ):
            print(line)
    return code


def _path(state: Path, word: str) -> Path:
    """Return the journal that a word means, one that is gone included: the chain file still knows it."""
    try:
        return find_run(state, word)
    except UsageError:
        from broker.record.chain import Chain
        from broker.record.evidence import by_run

        gone = [run for run in by_run(Chain(state).read()) if run.startswith(word) or run.endswith(f"-{word}")]
        if len(gone) != 1:
            raise
        return journal_path(state, gone[0])


def _held_against_keys(record: ChainRecord, args: argparse.Namespace) -> tuple[Signed | None, list[str]]:
    """Return what the key says, and everything that speaks against the chain file."""
    problems = [record.problem] if record.problem else []
    signed = key = None
    if args.key is not None:
        from broker.record.checkpoint import check, load_public

        key = load_public(args.key)
        signed = check(record, key)
        problems += [signed.problem] if signed.problem else []
    if args.checkpoint is not None:
        from broker.record.checkpoint import check_kept

        problem = check_kept(record, args.checkpoint, key)
        problems += [problem] if problem else []
    return signed, problems


def _run_line(finding: Finding, colours: Colours) -> str:
    name = escape(finding.run)
    if not finding.ok:
        return f"{name}  {colours.paint(finding.state.upper(), 'red', 'bold')}  {escape(finding.problem)}"
    if finding.found is None:
        return f"{name}  {colours.paint(finding.state, 'dim')}  {'; '.join(map(escape, finding.notes))}"
    head = f"{finding.found.count} events, head {finding.found.head}"
    return f"{name}  {colours.paint('ok', 'green')}  {'; '.join([head, *map(escape, finding.notes)])}"


def _run_json(finding: Finding) -> str:
    found = finding.found
    problem = None if finding.ok else {"line": finding.line or None, "text": finding.problem}
    row: dict[str, object] = {"run": finding.run, "journal": str(finding.path), "ok": finding.ok, "problem": problem}
    row |= {"state": finding.state.value, "bound": finding.bound, "notes": finding.notes, "running": finding.running}
    row |= {"events": found.count if found else 0, "head": found.head if found else None}
    row |= {"finished": found.finished if found else None, "torn": found.torn if found else 0}
    return event.encode(row).decode()


def _chain_lines(record: ChainRecord, signed: Signed | None, problems: list[str], colours: Colours) -> list[str]:
    lines = [f"chain file  {colours.paint('TAMPERED', 'red', 'bold')}  {escape(problem)}" for problem in problems]
    if lines:
        return lines
    if not record.entries:
        return ["chain file  there is none"]
    text = f"{len(record.entries)} {'entry' if len(record.entries) == 1 else 'entries'}, head {record.head}"
    if record.torn:
        text += f"; a torn last line of {record.torn} bytes: a broker died while writing it"
    if signed is not None:
        text += f"; signed up to entry {signed.vouched} at {signed.time}"
    return [f"chain file  {colours.paint('ok', 'green')}  {text}"]


def _chain_json(state: Path, record: ChainRecord, signed: Signed | None, problems: list[str]) -> str:
    row: dict[str, object] = {"chain": str(state / "chain.jsonl"), "ok": not problems, "problems": problems}
    row |= {"entries": len(record.entries), "head": record.head, "torn": record.torn}
    row |= {"signed": None if signed is None else {"entry": signed.vouched, "time": signed.time}}
    return event.encode(row).decode()


# --- keys and checkpoints


def _key(what: str, path: Path | None, *, as_json: bool) -> int:
    from broker.record import checkpoint

    path = path or checkpoint.default_key()
    if what == "new":
        name = checkpoint.new_key(path)
        row = {"private": str(path), "public": str(checkpoint.public_path(path)), "fingerprint": name}
        if as_json:
            print(event.encode(row).decode())
            return exit_codes.OK
        print(f"private key  {escape(row['private'])}   keep it where no agent and no broker can read it")
        print(f"public key   {escape(row['public'])}   what `broker events verify --key` takes")
        print(f"fingerprint  {name}")
        return exit_codes.OK
    public = checkpoint.load_public(path if path.exists() else checkpoint.public_path(path))
    if as_json:
        row = {"public": checkpoint.public_pem(public), "fingerprint": checkpoint.fingerprint(public)}
        print(event.encode(row).decode())
        return exit_codes.OK
    print(checkpoint.public_pem(public), end="")
    print(f"fingerprint  {checkpoint.fingerprint(public)}")
    return exit_codes.OK


def _checkpoint(state: Path, path: Path | None) -> int:
    from broker.record import checkpoint

    entry = checkpoint.sign(state, checkpoint.load_private(path or checkpoint.default_key()))
    print(event.encode(entry.fields).decode())
    sys.stderr.write(f"entry {entry.seq} of the chain file is signed. Keep the line above elsewhere.\n")
    return exit_codes.OK
