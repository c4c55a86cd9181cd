"""Input and output: nothing lost, nothing mixed, nothing kept in memory, and no reader that can hang broker."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import threading
import time
from pathlib import Path

import pytest

from conformance.driver import Broker, until

MEGABYTES = 100
# A hundred different blocks, so that one lost or swapped is seen.
FLOOD = f"""
import sys
for number in range({MEGABYTES}):
    sys.stdout.buffer.write(number.to_bytes(4, 'big') * (1 << 18))
"""


def flood_digest() -> str:
    digest = hashlib.sha256()
    for number in range(MEGABYTES):
        digest.update(number.to_bytes(4, "big") * (1 << 18))
    return digest.hexdigest()


def peak_memory(pid: int) -> int:
    """The highest resident size of a process so far, in bytes (proc(5), VmHWM)."""
    found = re.search(rb"VmHWM:\s*(\d+) kB", Path(f"/proc/{pid}/status").read_bytes())
    return int(found[1]) * 1024 if found else 0


def test_stdout_and_stderr_stay_apart(broker: Broker) -> None:
    done = broker.run("sh", "-c", "echo out; echo err >&2; echo more")

    assert (done.out, done.err) == (b"out\nmore\n", b"err\n")


def test_piped_input_arrives_whole_and_ends(broker: Broker) -> None:
    text = os.urandom(3 << 20)

    done = broker.run("sha256sum", stdin=text)

    assert done.out.split()[0].decode() == hashlib.sha256(text).hexdigest()


def test_empty_input_is_an_end_and_not_a_wait(broker: Broker) -> None:
    assert broker.run("cat", stdin=b"").code == 0
    assert broker.run("cat", stdin=subprocess.DEVNULL).code == 0


def closing(broker: Broker, closed: str, *command: str) -> subprocess.CompletedProcess[bytes]:
    """Run with descriptors closed, as `<&-` in a shell does."""
    words = broker.run_words(command)
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *words], env=broker.settings(), cwd=broker.folder,
        capture_output=True, timeout=60, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def test_without_stdin_the_command_reads_an_empty_one(broker: Broker) -> None:
    done = closing(broker, "<&-", "sh", "-c", "cat && ls /proc/self/fd/0 && echo read")

    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, [b"read"])


def test_without_stderr_the_command_runs_and_its_output_is_its_own(broker: Broker) -> None:
    done = closing(broker, "2>&-", "sh", "-c", "echo lost >&2; echo kept; exit 4")

    assert (done.returncode, done.stdout) == (4, b"kept\n")
    assert broker.verified()


def test_without_stdout_the_command_runs(broker: Broker) -> None:
    done = closing(broker, ">&-", "sh", "-c", "echo lost; echo kept >&2; exit 4")

    assert (done.returncode, done.stderr) == (4, b"kept\n")


def test_without_any_stream_the_command_runs(broker: Broker) -> None:
    assert closing(broker, "<&- >&- 2>&-", "sh", "-c", "exit 6").returncode == 6
    assert broker.verified()


def test_a_command_that_does_not_read_its_input_does_not_wait_for_the_writer(broker: Broker) -> None:
    reader, writer = os.pipe()
    try:
        assert broker.run("true", stdin=reader).code == 0  # the writer is still there, and silent
    finally:
        os.close(reader)
        os.close(writer)


def test_input_that_nobody_reads_does_not_hold_up_the_end(broker: Broker) -> None:
    assert broker.run("true", stdin=b"x" * (4 << 20)).code == 0


def test_a_hundred_megabytes_arrive_whole_and_broker_does_not_grow(broker: Broker) -> None:
    with broker.started("true") as small:
        small.process.communicate(timeout=60)
    with broker.started("python3", "-c", "print('x', flush=True); input()", stdin=subprocess.PIPE) as idle:
        idle.read_until(b"x")
        before = peak_memory(idle.pid)
        idle.process.communicate(b"\n", timeout=60)

    digest, peak = hashlib.sha256(), 0
    with broker.started("python3", "-c", FLOOD) as running:
        assert running.process.stdout is not None
        for chunk in iter(lambda: os.read(running.process.stdout.fileno(), 1 << 20), b""):
            digest.update(chunk)
            if running.process.poll() is None:
                peak = max(peak, peak_memory(running.pid))
        running.process.communicate(timeout=60)

    assert digest.hexdigest() == flood_digest()
    assert running.process.returncode == 0
    assert peak - before < 16 << 20


def test_a_slow_reader_slows_the_command_and_loses_nothing(broker: Broker) -> None:
    with broker.started("sh", "-c", "seq 1 1000000") as running:
        first = running.read_until(b"\n")
        deadline = time.monotonic() + 1.0  # the pipes fill meanwhile: what follows is read from full ones
        while time.monotonic() < deadline:
            time.sleep(0.05)
        done = running.finish()

    assert first.startswith(b"1\n")
    assert done.out.splitlines() == [b"%d" % number for number in range(1, 1_000_001)]


@pytest.mark.parametrize("engine", [pytest.param("bubblewrap", marks=pytest.mark.needs_bubblewrap)])
def test_a_pager_may_take_its_time_after_the_command_has_ended(broker: Broker) -> None:
    with broker.started("head", "-c", "1000000", "/dev/zero") as running:
        broker.wait_for_event("spawn.started")
        until(lambda: not broker.inside(), "the end of the command")
        with pytest.raises(subprocess.TimeoutExpired):
            running.process.wait(11)  # longer than broker gives a reader when it ends a task itself
        done = running.finish()

    assert (done.code, len(done.out)) == (0, 1_000_000)


def test_a_full_disk_behind_stdout_is_told_and_is_no_success(broker: Broker) -> None:
    with open("/dev/full", "wb") as full, broker.started("echo", "hello", stdout=full.fileno()) as running:
        done = running.finish()

    assert (done.code, done["status"]) == (70, "failed")
    assert b"No space left" in done.err


def test_non_blocking_streams_of_ours_lose_nothing(broker: Broker) -> None:
    in_reader, in_writer = os.pipe()
    out_reader, out_writer = os.pipe()
    for descriptor in (in_reader, out_writer):
        os.set_blocking(descriptor, False)
    text = b"".join(b"%d\n" % number for number in range(100_000))
    with broker.started("cat", stdin=in_reader, stdout=out_writer) as running:
        os.close(in_reader)
        os.close(out_writer)
        broker.wait_for_event("spawn.started")
        feeder = threading.Thread(target=lambda: (write_whole(in_writer, text), os.close(in_writer)))
        feeder.start()
        with os.fdopen(out_reader, "rb") as output:
            seen = output.read()
        feeder.join(60)
        done = running.finish()

    assert done.code == 0
    assert seen == text


def write_whole(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def test_output_over_the_cap_ends_the_task_and_what_was_under_it_arrives(broker: Broker) -> None:
    capped = broker.profile("capped", {"output": "1M"})

    done = broker.run("sh", "-c", "yes broker | head -c 100000000; echo survived >&2; sleep 600", profile=capped)

    assert (done.code, done["status"]) == (137, "output")
    assert len(done.out) + len(done.err) == 1 << 20
    assert set(done.out.splitlines()[:-1]) == {b"broker"}
    assert "output" in done["reason"]


def test_output_below_the_cap_is_untouched(broker: Broker) -> None:
    capped = broker.profile("capped", {"output": 1 << 20})

    done = broker.run("head", "-c", str(1 << 20), "/dev/zero", profile=capped)

    assert (done.code, len(done.out)) == (0, 1 << 20)


def test_an_orphan_that_holds_stdout_does_not_hold_broker(broker: Broker) -> None:
    begun = time.monotonic()
    done = broker.run("sh", "-c", "sleep 600 & echo begun; exit 3")

    assert (done.code, done.out) == (3, b"begun\n")
    assert time.monotonic() - begun < 20


def test_what_an_orphan_wrote_before_the_end_is_not_lost(broker: Broker) -> None:
    # The orphan says when it has written; only then does the command end.
    done = broker.run("bash", "-c", "exec 3< <(seq 1 5000 >&2; echo; exec sleep 600); read -r -u 3; exit 0")

    assert done.code == 0
    assert done.err.splitlines() == [b"%d" % number for number in range(1, 5001)]


def test_arguments_and_output_that_are_not_utf8_pass_unchanged(broker: Broker) -> None:
    odd = b"a\xff\xfe\x80 \x1b[31m\n\tz"

    done = broker.run("printf", "%s|", odd, b"\xc3\x28")

    assert (done.code, done.out) == (0, odd + b"|\xc3\x28|")
    assert broker.verified()


def test_every_byte_passes_both_ways(broker: Broker) -> None:
    every = bytes(range(256)) * 16

    assert broker.run("cat", stdin=every).out == every


def test_a_command_line_of_two_megabytes_is_refused_in_one_clear_line(broker: Broker) -> None:
    done = broker.run("printf", "%s", *["x" * 100_000] * 19)

    assert done.code == 64
    assert done.err.count(b"\n") == 1
    assert b"too long" in done.err
    assert done.out == b""


def test_two_megabytes_of_arguments_inside_are_a_denial_and_the_caller_sees_it(broker: Broker) -> None:
    attempt = "import os\ntry: os.execv('/bin/true', ['true'] + ['x' * 100_000] * 15)\nexcept OSError as error: print(error.errno)"

    done = broker.run("python3", "-c", attempt)

    assert done.out == b"7\n"  # E2BIG
    assert [row["rule"] for row in done["denials"]] == ["exec.too_large"]


def test_arguments_below_the_limit_pass(broker: Broker) -> None:
    done = broker.run("python3", "-c", "import sys; print(len(sys.argv[1]))", "x" * 100_000)

    assert done.out == b"100000\n"


def test_a_reader_that_goes_away_ends_the_writer_with_sigpipe_as_it_would_without_broker(broker: Broker) -> None:
    with broker.started("sh", "-c", "yes; echo $? >&2") as running:
        running.read_until(b"y\n")
        running.process.stdout.close()  # type: ignore[union-attr]
        running.process.stdout = None
        _, err = running.process.communicate(timeout=30)

    assert running.process.returncode == 0
    assert err.splitlines()[-1] == b"141"


def test_a_pipeline_of_brokers_ends_like_a_pipeline(broker: Broker) -> None:
    words = broker.run_words(["yes"])
    first = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=broker.settings(), cwd=broker.folder)
    second = subprocess.run(
        broker.run_words(["head", "-n", "2"]), stdin=first.stdout, capture_output=True, env=broker.settings(),
        cwd=broker.folder, timeout=60, check=False,
    )  # fmt: skip
    assert first.stdout is not None
    first.stdout.close()

    assert second.stdout == b"y\ny\n"
    assert first.wait(30) == 141


def test_dev_stdout_and_dev_stderr_can_be_opened(for_somebody: Broker) -> None:
    done = for_somebody.run("sh", "-c", "echo out >/dev/stdout; echo err >/dev/stderr; cat /dev/stdin", stdin=b"in\n")

    assert (done.code, done.out, done.err) == (0, b"out\nin\n", b"err\n")


def test_a_host_file_given_as_stdout_cannot_be_read_or_rewritten_from_inside(broker: Broker, folder: Path) -> None:
    log = folder / "log"
    log.write_bytes(b"the operator's own line\n")
    attempt = "import os\nos.write(1, b'new line\\n')\ntry: os.lseek(1, 0, 0); os.ftruncate(1, 0); print('changed')\nexcept OSError as error: pass"

    with log.open("ab") as target, broker.started("python3", "-c", attempt, stdout=target.fileno()) as running:
        done = running.finish()

    assert done.code == 0
    assert log.read_bytes() == b"the operator's own line\nnew line\n"


def test_json_puts_the_result_alone_on_stdout(broker: Broker) -> None:
    import json

    done = broker.run("sh", "-c", "echo hello; exit 2", options=["--json"])

    assert json.loads(done.out)["exit_code"] == 2
    assert b"hello" in done.err


@pytest.mark.parametrize("verb", ["run", "exec"])
def test_both_verbs_pass_the_streams(broker: Broker, verb: str) -> None:
    done = broker.run("cat", stdin=b"through\n", verb=verb)

    assert (done.code, done.out) == (0, b"through\n")

