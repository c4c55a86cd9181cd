"""Fuzz the classifier with coverage in view: no text may make it raise, and none may take long.

    pip install atheris
    python -m benchmarks.fuzz_classifier --seconds 1200 [--corpus DIR] [--jobs atheris options …]

The seeds are the rows of tests/cases/*.toml. Inputs are built from pieces of shell grammar as well as from bytes,
so that they get past the first word. A finding is an exception, or a text that takes longer than TOO_LONG of
processor time; the text is printed and written beside the corpus.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import tomllib
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["broker.classify"]):
    from broker.classify import classify
    from broker.classify import shell as _shell  # noqa: F401 - loaded lazily otherwise, and then not instrumented
    from broker.classify.context import Context
    from broker.classify.readers import FAMILIES, reader_named
    from broker.request.operation import ShellText

    for names in FAMILIES.values():
        reader_named(names.split()[0])

CONTEXT = Context(cwd="/work/project", home="/home/dev", workspace="/work/project")
TOO_LONG = 1.0
"""Seconds for a text of at most MAX_SIZE: instrumented code is some five times slower than usual."""
MAX_SIZE = 4096
MAX_REPEATS = 400

PIECES = tuple(
    "|`|$(|$((|))|)|${|}|${x:-|${x#|${x%%|${x/|${!x|${x@P}|${x[|]|$[|\"|'|$'|$\"|\\|\\\n|\n|;|;;|&|&&|||\\|| |\t|#|<|>|>>|<<E\n|"
    "<<'E'\n|<<-E\n|\nE\n|<<<|<(|>(|&>|2>&1|{|{a,b}|{1..9}|{ |; }|[[ | ]]|((|if |; then |; else |; elif |; fi|for x in |"
    "; do |; done|while |until |case x in | a) |;; esac|select x in |function f |f() {|time |coproc |! |~|*|?|[a-z]|@(a|"
    "!(b|x=|x+=|x=(|x[1]=|export x=|local x|declare -A |eval |trap |exec |source |alias a=|cd |sh -c |xargs |env -S |sudo |"
    "find . -exec |{} \\;|sed -e |awk |'{|}'|git -c |python3 -c |curl |rm -rf |tee |ls|echo |$x|\"$x\"|$HOME|$@|$?|$1|a|b|/|"
    "..|-|--|=|,|.|:|@|%|^|0|9|\u00e9|\U0010fffe".split("|")
)


def text_of(data: bytes) -> str:
    """Build a text: pieces of grammar, repeats of what is there, and bytes as they are."""
    if data[:1] == b"\0":
        return data[1:].decode("utf-8", "surrogateescape")
    provider = atheris.FuzzedDataProvider(data)
    out: list[str] = []
    size = 0
    while provider.remaining_bytes() and size < MAX_SIZE:
        choice = provider.ConsumeIntInRange(0, 15)
        if choice < 12:
            piece = PIECES[provider.ConsumeIntInRange(0, len(PIECES) - 1)]
        elif choice == 12 and out:
            width = provider.ConsumeIntInRange(1, 4)
            piece = "".join(out[-width:]) * provider.ConsumeIntInRange(1, MAX_REPEATS)
        else:
            piece = provider.ConsumeUnicodeNoSurrogates(provider.ConsumeIntInRange(1, 8))
        out.append(piece)
        size += len(piece)
    return "".join(out)[:MAX_SIZE]


def one(data: bytes) -> None:
    """Classify one text; raise if it takes too long."""
    text = text_of(data)
    started = time.process_time()
    classify(ShellText(text=text), CONTEXT)
    spent = time.process_time() - started
    if spent > TOO_LONG:
        raise RuntimeError(f"{spent:.1f} s for {len(text)} characters: {text[:300]!r}")


def seed(corpus: Path) -> None:
    """Put every row of the tests' cases into the corpus."""
    for file in sorted((Path(__file__).parents[1] / "tests" / "cases").glob("*.toml")):
        for number, row in enumerate(tomllib.loads(file.read_text(encoding="utf-8"))["case"]):
            (corpus / f"{file.stem}-{number}").write_bytes(b"\0" + row["command"].encode("utf-8", "surrogateescape"))


def main() -> None:
    """Fuzz for a while."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=int, default=1200)
    parser.add_argument("--corpus", type=Path, help="where inputs are kept (default: a temporary folder)")
    parser.add_argument("--seed", type=int, default=0, help="of the random choices; 0: another one each time")
    arguments = parser.parse_args()
    corpus = arguments.corpus or Path(tempfile.mkdtemp(prefix="broker-fuzz-"))
    corpus.mkdir(parents=True, exist_ok=True)
    seed(corpus)
    options = [
        f"-max_total_time={arguments.seconds}", f"-max_len={MAX_SIZE}", f"-seed={arguments.seed}",
        f"-artifact_prefix={corpus.parent}/finding-", "-timeout=20", "-rss_limit_mb=2048", "-print_final_stats=1",
    ]  # fmt: skip
    atheris.Setup([sys.argv[0], *options, str(corpus)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
