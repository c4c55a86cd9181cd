"""`broker gc`: remove what brokers that died left on this host, changes that were kept for too long, and old records."""

from __future__ import annotations

import argparse

SUMMARY = "remove what a dead broker left behind, old kept changes, old journals"
EXAMPLES = """
broker gc
broker gc --dry-run              what is there, how large, how old
broker gc --older-than 7d
broker gc --journals --older-than 90d         runs go, too, and leave a tombstone: verify tells them from lost ones
broker gc --journals --older-than 90d --keep 100 -n
broker gc --json
"""
KEPT_FOR = "30d"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("-n", "--dry-run", action="store_true", help="remove nothing; list kept changes and what would go")
    parser.add_argument("--older-than", metavar="TIME",
                        help=f"remove changes that were kept for longer: 12h, 7d (default: {KEPT_FOR})")  # fmt: skip
    parser.add_argument("--journals", action="store_true",
                        help="remove the records of runs that ended longer ago than --older-than, too")  # fmt: skip
    parser.add_argument("--keep", type=int, default=0, metavar="N", help="of the records, keep the N newest, however old")
    parser.add_argument("--json", action="store_true", help="print the lists as JSON")


def run(args: argparse.Namespace) -> int:
    """Sweep both engines and the layers. Things of a broker that still lives are never touched."""
    import json
    import time

    from broker.enforce.bubblewrap_engine import BubblewrapEngine
    from broker.enforce.choose import docker_may_answer, engine_named
    from broker.enforce.layer import layers_base, list_layers
    from broker.errors import UsageError
    from broker.profiles.quantity import parse_time
    from broker.record.run_files import state_dir
    from broker.task.landing import old_layers, recover_landings, remove_old
    from broker.task.watching import sweep as sweep_control_sockets

    if args.keep < 0 or (args.keep and not args.journals):
        raise UsageError("--keep says how many records stay, and goes with --journals")
    if args.journals and args.older_than is None:
        raise UsageError("--journals removes evidence: say how old, as in --journals --older-than 90d")
    try:
        seconds = parse_time(args.older_than or KEPT_FOR)
    except ValueError as error:
        raise UsageError(f"--older-than {args.older_than}: {error}") from None
    base = layers_base(state_dir())
    removed: list[str] = []
    if not args.dry_run:
        removed += [*BubblewrapEngine().sweep(), *sweep_control_sockets()]
        if docker_may_answer():
            removed += engine_named("docker").sweep()
        removed += recover_landings(base)
    old = {layer.run for layer in old_layers(base, seconds)}
    kept = []
    for layer in list_layers(base):
        if layer.running():
            continue
        size = layer.size()
        gone = layer.run in old and (args.dry_run or remove_old(layer, seconds))
        row = {
            "run": layer.run, "workspace": layer.manifest.workspace, "bytes": size,
            "age_seconds": round(time.time() - (layer.manifest.ended or layer.manifest.began) / 1e9),
            "removed" if not args.dry_run else "would_be_removed": gone,
        }  # fmt: skip
        kept.append(row)
        if gone and not args.dry_run:
            removed.append(f"changes of {layer.run}")
    runs = _journals(args, seconds) if args.journals else []
    removed += [f"the record of {row['run']}" for row in runs if row.get("removed")]
    if args.json:
        print(json.dumps({"removed": removed, "layers": kept, **({"journals": runs} if args.journals else {})}))
        return 0
    _print(removed, kept, runs, dry=args.dry_run)
    return 0


def _journals(args: argparse.Namespace, seconds: float) -> list[dict[str, object]]:
    """Remove old records, or say which would go. What dead brokers left unbound is bound first."""
    import time

    from broker.enforce.layer import layers_base, list_layers
    from broker.record.evidence import bind_dead
    from broker.record.retention import old_runs, remove
    from broker.record.run_files import state_dir

    state = state_dir()
    if not args.dry_run:
        bind_dead(state)
    needed = {layer.run for layer in list_layers(layers_base(state))}
    rows: list[dict[str, object]] = []
    for old in list(old_runs(state, now=time.time(), older_than=seconds, keep=args.keep, needed=needed)):
        if not args.dry_run and not old.stays:
            remove(state, old)
        rows.append({
            "run": old.run, "bytes": old.bytes, "age_seconds": round(old.age), "stays": old.stays or None,
            "removed" if not args.dry_run else "would_be_removed": not old.stays,
        })  # fmt: skip
    return rows


def _print(removed: list[str], kept: list[dict[str, object]], runs: list[dict[str, object]], *, dry: bool) -> None:
    from broker.cli.terminal import escape

    for line in removed:
        print(f"removed {escape(line)}")
    for row in kept:
        if row.get("removed"):
            continue
        days = float(str(row["age_seconds"])) / 86_400
        what = "would remove" if row.get("would_be_removed") else "kept"
        print(f"{what}  {row['run']}  {int(str(row['bytes'])) >> 10} KiB  {days:.1f} days  {escape(str(row['workspace']))}")
    for row in runs:
        days = float(str(row["age_seconds"])) / 86_400
        if row["stays"]:
            print(f"kept  {row['run']}  {escape(str(row['stays']))}")
        elif row.get("would_be_removed"):
            print(f"would remove  the record of {row['run']}  {int(str(row['bytes'])) >> 10} KiB  {days:.1f} days")
    if not dry:
        print(f"{len(removed)} leftovers removed" if removed else "nothing was left behind")
