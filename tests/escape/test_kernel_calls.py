"""System calls that no code in a sandbox may make, whatever the profile lets run: the kernel says no to each."""

from __future__ import annotations

import pytest

from escape.hostile import Attempts

REFUSED = {"EPERM", "EACCES", "ENOSYS", "EAFNOSUPPORT", "EPROTONOSUPPORT"}


@pytest.mark.parametrize(
    "name", ["unshare_user", "unshare_mount", "clone_newuser", "clone_newnet", "clone_untraced", "clone3",
             "setns_of_process_one"],
)  # fmt: skip
def test_no_namespace_is_made_or_entered(attempts: Attempts, name: str) -> None:
    assert attempts[name] in REFUSED


@pytest.mark.parametrize(
    "name", ["mount_tmpfs", "remount_workspace_writable", "umount_protected", "pivot_root", "chroot", "fsopen", "open_tree",
             "move_mount", "mount_setattr", "swapon", "quotactl"],
)  # fmt: skip
def test_nothing_is_mounted_or_unmounted(attempts: Attempts, name: str) -> None:
    assert attempts[name] in REFUSED


@pytest.mark.parametrize(
    "name", ["ptrace_traceme", "ptrace_sibling", "ptrace_guard", "process_vm_readv", "process_vm_writev",
             "pidfd_getfd_of_guard", "process_madvise_guard"],
)  # fmt: skip
def test_no_other_process_is_traced_or_read(attempts: Attempts, name: str) -> None:
    assert attempts[name] in REFUSED


@pytest.mark.parametrize(
    "name", ["io_uring", "userfaultfd", "bpf", "perf_event_open", "keyctl", "add_key", "request_key", "fanotify",
             "open_by_handle_at", "name_to_handle_at", "lookup_dcookie", "uselib", "modify_ldt"],
)  # fmt: skip
def test_large_kernel_surfaces_are_closed(attempts: Attempts, name: str) -> None:
    assert attempts[name] in REFUSED


@pytest.mark.parametrize(
    "name", ["load_module", "finit_module", "delete_module", "kexec", "kexec_file", "reboot", "acct", "syslog",
             "settimeofday", "sethostname", "iopl"],
)  # fmt: skip
def test_the_machine_is_not_the_tasks_to_run(attempts: Attempts, name: str) -> None:
    assert attempts[name] in REFUSED


def test_calls_by_another_architectures_numbers_do_not_exist(attempts: Attempts) -> None:
    assert attempts["x32"] == "ENOSYS"


def test_a_seccomp_listener_of_its_own_cannot_answer_for_the_guard(attempts: Attempts) -> None:
    """RET_USER_NOTIF goes before RET_TRACE, and its `continue` would skip the guard's look (seccomp(2))."""
    assert attempts["seccomp_listener"] == "EPERM"


def test_a_filter_of_its_own_cannot_pass_an_exec_off_as_something_else(attempts: Attempts) -> None:
    """RET_TRACE of the newest filter replaces the data of the guard's: the guard goes by the call's number."""
    assert attempts["seccomp_trace_data"] == 13  # EACCES, from the exec of curl


@pytest.mark.parametrize(
    "name", ["vsock", "packet", "raw", "icmp", "alg", "bluetooth", "can", "key", "xdp", "sctp", "smc", "tipc"],
)  # fmt: skip
def test_only_sockets_of_files_and_loopback_can_be_made(attempts: Attempts, name: str) -> None:
    assert attempts[f"socket_{name}"] in REFUSED


def test_netlink_is_for_routes_only_and_changes_nothing(attempts: Attempts) -> None:
    assert attempts["netlink_other_than_route"] == []
    assert attempts["new_link"] == "EPERM"


def test_nothing_outside_is_reached_by_network(attempts: Attempts) -> None:
    assert attempts["connect_out"] == "ENETUNREACH"
    assert attempts["connect_to_host_loopback"] == "ECONNREFUSED"
    assert attempts["name_resolution"] == "no answer"


def test_no_capability_and_no_group_of_the_broker_comes_in(attempts: Attempts) -> None:
    found = attempts["identity"]
    assert {found[name] for name in ("CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb")} == {"0" * 16}
    assert found["NoNewPrivs"] == "1" and found["Seccomp"] == "2"
    assert set(found["groups"]) <= {found["gid"]}
