"""Hostile code that was allowed to run: what it tries, one function each. Runs inside, needs the standard library.

Usage: attempts.py FACTS NAME... Prints one JSON object: name -> errno's name, "ok", or what was found. Each attempt has
a process of its own, so that one that is killed is a result ("killed by 9") and not the end.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import socket
import stat
import struct
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
FACTS = json.loads(sys.argv[1])
PAGE = 4096

# x86-64 numbers; None on another machine leaves the attempt out.
NUMBERS = {
    "ptrace": 101, "syslog": 103, "pivot_root": 155, "chroot": 161, "acct": 163, "settimeofday": 164, "mount": 165,
    "umount2": 166, "swapon": 167, "reboot": 169, "sethostname": 170, "iopl": 172, "ioperm": 173, "init_module": 175,
    "delete_module": 176, "quotactl": 179, "add_key": 248, "request_key": 249, "keyctl": 250, "unshare": 272,
    "perf_event_open": 298, "fanotify_init": 300, "prlimit64": 302, "name_to_handle_at": 303, "open_by_handle_at": 304,
    "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "finit_module": 313, "seccomp": 317,
    "memfd_create": 319, "kexec_file_load": 320, "bpf": 321, "execveat": 322, "userfaultfd": 323, "pkey_alloc": 330,
    "io_uring_setup": 425, "pidfd_send_signal": 424, "open_tree": 428, "move_mount": 429, "fsopen": 430, "fspick": 433,
    "pidfd_open": 434, "clone3": 435, "openat2": 437, "pidfd_getfd": 438, "process_madvise": 440, "mount_setattr": 442,
    "quotactl_fd": 443, "memfd_secret": 447, "kexec_load": 246, "clone": 56, "modify_ldt": 154, "vhangup": 153,
    "mknodat": 259, "linkat": 265, "renameat2": 316, "fchmodat2": 452, "lookup_dcookie": 212, "uselib": 134,
    "process_mrelease": 448, "fchmod": 91, "chmod": 90, "creat": 85,
}  # fmt: skip


def call(name: str, *args: object) -> str:
    """Make a system call and say how it went."""
    ctypes.set_errno(0)
    words = [ctypes.c_void_p(a) if isinstance(a, int) else a for a in args]
    got = LIBC.syscall(ctypes.c_long(NUMBERS[name]), *words)
    return "ok" if got >= 0 else errno.errorcode.get(ctypes.get_errno(), str(ctypes.get_errno()))


def saying(action) -> object:  # type: ignore[no-untyped-def]
    """Run something of the standard library and say how it went."""
    try:
        found = action()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    return "ok" if found is None else found


def read(path: str, size: int = 200) -> str:
    with open(path, "rb", buffering=0) as file:
        return file.read(size).decode("utf-8", "surrogateescape")


def write(path: str, text: str = "broker-escape\n", flags: int = os.O_WRONLY | os.O_CREAT) -> None:
    descriptor = os.open(path, flags, 0o755)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def first_ok(paths, action) -> object:  # type: ignore[no-untyped-def]
    """Try each path; report those where it worked."""
    worked = []
    for path in paths:
        try:
            action(path)
        except OSError:
            continue
        worked.append(path)
    return worked


# -- system calls ------------------------------------------------------------------------------------------------

CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWNET, CLONE_UNTRACED = 0x10000000, 0x20000, 0x40000000, 0x800000


def try_unshare_user() -> object:
    return call("unshare", CLONE_NEWUSER)


def try_unshare_mount() -> object:
    return call("unshare", CLONE_NEWNS)


def try_clone_newuser() -> object:
    return call("clone", CLONE_NEWUSER | 17, 0, 0, 0, 0)


def try_clone_newnet() -> object:
    return call("clone", CLONE_NEWNET | 17, 0, 0, 0, 0)


def try_clone_untraced() -> object:
    return call("clone", CLONE_UNTRACED | 17, 0, 0, 0, 0)


def try_clone3() -> object:
    arguments = ctypes.create_string_buffer(struct.pack("8Q", CLONE_NEWUSER, 0, 0, 0, 17, 0, 0, 0))
    return call("clone3", arguments, 64)


def try_setns_of_process_one() -> object:
    def enter() -> str:
        descriptor = os.open("/proc/1/ns/mnt", os.O_RDONLY)
        return call("setns", descriptor, 0)

    return saying(enter)


def try_mount_tmpfs() -> object:
    return call("mount", b"none", b"/tmp", b"tmpfs", 0, 0)


def try_remount_workspace_writable() -> object:
    return call("mount", b"none", FACTS["workspace"].encode() + b"/.git/hooks", b"", 32 | 4096, 0)


def try_umount_protected() -> object:
    return call("umount2", FACTS["workspace"].encode() + b"/.git/hooks", 2)


def try_pivot_root() -> object:
    return call("pivot_root", b"/tmp", b"/tmp")


def try_chroot() -> object:
    return call("chroot", b"/tmp")


def try_fsopen() -> object:
    return call("fsopen", b"tmpfs", 0)


def try_open_tree() -> object:
    return call("open_tree", -100, b"/", 1)


def try_move_mount() -> object:
    return call("move_mount", -100, b"/tmp", -100, b"/dev/shm", 0)


def try_mount_setattr() -> object:
    return call("mount_setattr", -100, b"/", 0, 0, 0)


def try_ptrace_traceme() -> object:
    return call("ptrace", 0, 0, 0, 0)


def try_ptrace_sibling() -> object:
    return call("ptrace", 0x4206, os.getppid(), 0, 0)


def try_ptrace_guard() -> object:
    return call("ptrace", 0x4206, 1, 0, 0)


def try_process_vm_readv() -> object:
    buffer = ctypes.create_string_buffer(8)
    vector = ctypes.create_string_buffer(struct.pack("QQ", ctypes.addressof(buffer), 8))
    return call("process_vm_readv", os.getppid(), vector, 1, vector, 1, 0)


def try_process_vm_writev() -> object:
    buffer = ctypes.create_string_buffer(8)
    vector = ctypes.create_string_buffer(struct.pack("QQ", ctypes.addressof(buffer), 8))
    return call("process_vm_writev", 1, vector, 1, vector, 1, 0)


def try_pidfd_getfd_of_guard() -> object:
    return call("pidfd_getfd", os.pidfd_open(1), 3, 0)


def try_io_uring() -> object:
    return call("io_uring_setup", 8, ctypes.create_string_buffer(120))


def try_userfaultfd() -> object:
    return call("userfaultfd", 1)


def try_keyctl() -> object:
    return call("keyctl", 0, -3, 1)


def try_add_key() -> object:
    return call("add_key", b"user", b"broker", b"x", 1, -3)


def try_request_key() -> object:
    return call("request_key", b"user", b"broker", 0, -3)


def try_bpf() -> object:
    return call("bpf", 0, ctypes.create_string_buffer(128), 128)


def try_perf_event_open() -> object:
    attributes = ctypes.create_string_buffer(struct.pack("IIQ", 1, 120, 0), 120)
    return call("perf_event_open", attributes, 0, -1, -1, 0)


def try_fanotify() -> object:
    return call("fanotify_init", 0, 0)


def try_open_by_handle_at() -> object:
    return call("open_by_handle_at", 3, ctypes.create_string_buffer(64), 0)


def try_name_to_handle_at() -> object:
    return call("name_to_handle_at", -100, b"/", ctypes.create_string_buffer(256), ctypes.create_string_buffer(8), 0)


def try_load_module() -> object:
    return call("init_module", b"x", 1, b"")


def try_finit_module() -> object:
    return call("finit_module", 0, b"", 0)


def try_delete_module() -> object:
    return call("delete_module", b"x", 0)


def try_kexec() -> object:
    return call("kexec_load", 0, 0, 0, 0)


def try_kexec_file() -> object:
    return call("kexec_file_load", -1, -1, 0, 0, 0)


def try_reboot() -> object:
    return call("reboot", 0xFEE1DEAD, 672274793, 0, 0)


def try_swapon() -> object:
    return call("swapon", b"/tmp/x", 0)


def try_acct() -> object:
    return call("acct", b"/tmp/acct")


def try_syslog() -> object:
    return call("syslog", 3, ctypes.create_string_buffer(64), 64)


def try_settimeofday() -> object:
    return call("settimeofday", ctypes.create_string_buffer(16), 0)


def try_sethostname() -> object:
    return call("sethostname", b"owned", 5)


def try_quotactl() -> object:
    return call("quotactl", 0, b"/", 0, 0)


def try_iopl() -> object:
    return call("iopl", 3)


def try_modify_ldt() -> object:
    return call("modify_ldt", 0, ctypes.create_string_buffer(16), 16)


def try_lookup_dcookie() -> object:
    return call("lookup_dcookie", 0, ctypes.create_string_buffer(64), 64)


def try_uselib() -> object:
    return call("uselib", b"/lib/x")


def try_process_madvise_guard() -> object:
    return call("process_madvise", os.pidfd_open(1), 0, 0, 4, 0)


def try_x32() -> object:
    """getpid by its x32 number."""
    ctypes.set_errno(0)
    got = LIBC.syscall(ctypes.c_long(0x40000000 + 39))
    return "ok" if got > 0 else errno.errorcode.get(ctypes.get_errno(), "?")


class _Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("program", ctypes.c_void_p)]


def _seccomp(number: int, action: int, flags: int) -> str:
    """Install a filter that answers one system call with an action."""
    LIBC.prctl(38, 1, 0, 0, 0)
    code = struct.pack("HBBI", 0x20, 0, 0, 0) + struct.pack("HBBI", 0x15, 0, 1, number)
    code += struct.pack("HBBI", 0x06, 0, 0, action) + struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000)
    program = ctypes.create_string_buffer(code)
    return call("seccomp", 1, flags, ctypes.byref(_Filter(4, ctypes.addressof(program))))


def try_seccomp_listener() -> object:
    """RET_USER_NOTIF beats RET_TRACE: whoever may listen may answer `continue` to every call the guard stops."""
    return _seccomp(257, 0x7FC00000, 8)


def try_seccomp_trace_data() -> object:
    """A filter of our own that answers RET_TRACE with other data: the guard must go by the call's number."""
    if _seccomp(59, 0x7FF00000 | 2, 0) != "ok":
        return "no filter"
    pid = os.fork()
    if pid == 0:
        try:
            os.execv("/usr/bin/env", ["env", "curl", "http://192.0.2.1/"])
        except OSError as error:
            os._exit(error.errno or 1)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


# -- sockets -----------------------------------------------------------------------------------------------------


def _socket(family: int, kind: int, protocol: int = 0) -> object:
    return saying(lambda: socket.socket(family, kind, protocol).close())


def try_socket_vsock() -> object:
    return _socket(40, socket.SOCK_STREAM)


def try_socket_packet() -> object:
    return _socket(17, socket.SOCK_RAW, 0x300)


def try_socket_raw() -> object:
    return _socket(socket.AF_INET, socket.SOCK_RAW, 1)


def try_socket_icmp() -> object:
    return _socket(socket.AF_INET, socket.SOCK_DGRAM, 1)


def try_socket_alg() -> object:
    return _socket(38, socket.SOCK_SEQPACKET)


def try_socket_bluetooth() -> object:
    return _socket(31, socket.SOCK_RAW, 0)


def try_socket_can() -> object:
    return _socket(29, socket.SOCK_RAW, 1)


def try_socket_key() -> object:
    return _socket(15, socket.SOCK_RAW, 2)


def try_socket_xdp() -> object:
    return _socket(44, socket.SOCK_RAW, 0)


def try_socket_sctp() -> object:
    return _socket(socket.AF_INET, socket.SOCK_STREAM, 132)


def try_socket_smc() -> object:
    return _socket(43, socket.SOCK_STREAM, 0)


def try_socket_tipc() -> object:
    return _socket(30, socket.SOCK_STREAM, 0)


def try_netlink_other_than_route() -> object:
    return [n for n in range(1, 23) if _socket(16, socket.SOCK_RAW, n) == "ok"]


def try_new_link() -> object:
    """Add a dummy link by the netlink socket that is allowed."""

    def add() -> object:
        asked = socket.socket(16, socket.SOCK_RAW, 0)
        body = struct.pack("BxHiII", 0, 0, 0, 0, 0) + struct.pack("HH4s", 8, 3, b"evl\0")
        info = struct.pack("HH8s", 12, 1, b"dummy\0\0\0")
        body += struct.pack("HH", 4 + len(info), 18) + info
        asked.send(struct.pack("IHHII", 16 + len(body), 16, 0x605, 1, 0) + body)
        answer = asked.recv(4096)
        code = -struct.unpack_from("i", answer, 16)[0]
        return errno.errorcode.get(code, code) if code else "ok"

    return saying(add)


def try_connect_out() -> object:
    def reach() -> None:
        with socket.socket() as out:
            out.settimeout(2)
            out.connect(("192.0.2.1", 80))

    return saying(reach)


def try_connect_to_host_loopback() -> object:
    def reach() -> None:
        with socket.socket() as out:
            out.settimeout(2)
            out.connect(("127.0.0.1", FACTS["port"]))

    return saying(reach)


def try_connect_host_abstract_socket() -> object:
    def reach() -> None:
        with socket.socket(socket.AF_UNIX) as out:
            out.connect("\0" + FACTS["abstract"])

    return saying(reach)


def try_connect_host_sockets_by_path() -> object:
    """Everything that listens on this machine by a path, and what lies in the workspace."""

    def reach(path: str) -> None:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
            with socket.socket(socket.AF_UNIX, kind) as out:
                try:
                    out.connect(path)
                except OSError:
                    continue
                return
        raise OSError(errno.ECONNREFUSED, path)

    return first_ok(FACTS["host_sockets"], reach)


def try_name_resolution() -> object:
    def ask() -> object:
        return socket.getaddrinfo("example.com", 80)

    try:
        ask()
    except socket.gaierror:
        return "no answer"
    return "ok"


# -- files of the host -------------------------------------------------------------------------------------------


def try_read_host_files() -> object:
    return first_ok(FACTS["host_files"], read)


def try_list_host_folders() -> object:
    found = {}
    for path in FACTS["host_folders"]:
        try:
            names = os.listdir(path)
        except OSError:
            continue
        if names:
            found[path] = names
    return found


def try_write_outside() -> object:
    return first_ok(FACTS["outside"], write)


def try_write_workspace_parent() -> object:
    parent = os.path.dirname(FACTS["workspace"])
    return saying(lambda: write(os.path.join(parent, "escaped")))


def try_write_through_symlink() -> object:
    os.symlink(FACTS["victim"], "victim-link")
    return saying(lambda: write("victim-link"))


def try_write_through_symlinked_folder() -> object:
    os.symlink(os.path.dirname(FACTS["victim"]), "victim-folder")
    return saying(lambda: write("victim-folder/" + os.path.basename(FACTS["victim"])))


def try_hard_link_of_host_file() -> object:
    return first_ok(["/etc/hostname", "/etc/passwd", "/usr/bin/env", FACTS["victim"]], lambda path: os.link(path, "hard"))


def try_write_by_proc_root() -> object:
    return first_ok([f"/proc/self/root{FACTS['victim']}", f"/proc/1/root{FACTS['victim']}",
                     f"/proc/1/cwd{FACTS['victim']}"], write)  # fmt: skip


def try_open_guards_folders() -> object:
    paths = ["/proc/1/root/etc", "/proc/1/cwd/etc", "/proc/1/ns/mnt", "/proc/1/exe"]
    return first_ok([*paths, *(f"/proc/1/fd/{n}" for n in range(64))], lambda path: os.open(path, os.O_RDONLY))


def try_read_guards_secrets() -> object:
    return first_ok(["/proc/1/mem", "/proc/1/environ", "/proc/1/maps", "/proc/1/auxv", "/proc/1/stack",
                     "/proc/1/syscall", "/proc/1/personality"], read)  # fmt: skip


def try_write_proc() -> object:
    """Every file below /proc (not of our own process) that can be opened for writing."""
    worked = []
    for folder, names, files in os.walk("/proc"):
        names[:] = [name for name in names if name not in ("task", "fd", "fdinfo", "map_files", "net", "attr")]
        if folder == "/proc":
            names[:] = [name for name in names if not name.isdigit() or name == "1"]
        for name in files:
            path = os.path.join(folder, name)
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
            except OSError:
                continue
            worked.append(path)
    return worked


def try_write_own_proc() -> object:
    """Files that change how the kernel sees this process, or its memory past every mapping's rights."""
    return first_ok([f"/proc/self/{name}" for name in ("mem", "oom_score_adj", "uid_map", "gid_map", "setgroups",
                     "attr/current", "coredump_filter", "clear_refs", "comm", "projid_map", "autogroup",
                     "loginuid", "timerslack_ns", "make-it-fail")],
                    lambda path: os.close(os.open(path, os.O_WRONLY)))  # fmt: skip


def try_write_sys() -> object:
    if not os.path.isdir("/sys"):
        return []
    worked = []
    for folder, names, files in os.walk("/sys"):
        if folder.count("/") > 3 or folder == "/sys/devices":  # the classes lead there too
            names[:] = []
        for name in files:
            try:
                os.close(os.open(os.path.join(folder, name), os.O_WRONLY | os.O_NONBLOCK))
            except OSError:
                continue
            worked.append(os.path.join(folder, name))
    return worked


def try_core_pattern() -> object:
    return saying(lambda: write("/proc/sys/kernel/core_pattern", "|/tmp/x", os.O_WRONLY))


def try_devices() -> object:
    """Device files that can be opened, other than the harmless ones."""
    harmless = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "console", "pts", "shm"}
    worked = []
    for name in os.listdir("/dev"):
        path = f"/dev/{name}"
        if name in harmless or os.path.islink(path) or os.path.isdir(path):
            continue
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        except OSError:
            continue
        worked.append(path)
    return worked


def try_mknod() -> object:
    worked = []
    for place in (".", "/tmp", "/dev/shm", os.environ["HOME"]):
        for kind, device in ((stat.S_IFBLK, os.makedev(8, 0)), (stat.S_IFCHR, os.makedev(1, 1)), (stat.S_IFCHR, 0)):
            try:
                os.mknod(f"{place}/device", kind | 0o666, device)
            except OSError:
                continue
            worked.append(place)
    return worked


# -- setuid files that survive ---------------------------------------------------------------------------------------


def _made(name: str) -> str:
    write(name)
    return name


def try_setuid_by_chmod() -> object:
    return saying(lambda: os.chmod(_made("setuid-chmod"), 0o4755))


def try_setgid_by_chmod() -> object:
    return saying(lambda: os.chmod(_made("setgid-chmod"), 0o2755))


def try_setuid_by_fchmod() -> object:
    descriptor = os.open(_made("setuid-fchmod"), os.O_RDONLY)
    return saying(lambda: os.fchmod(descriptor, 0o4755))


def try_setuid_by_fchmodat2() -> object:
    return call("fchmodat2", -100, _made("setuid-fchmodat2").encode(), 0o4755, 0x100)


def try_setuid_by_open() -> object:
    return saying(lambda: os.close(os.open("setuid-open", os.O_WRONLY | os.O_CREAT, 0o4755)))


def try_setuid_by_creat() -> object:
    return call("creat", b"setuid-creat", 0o4755)


def try_setuid_by_openat2() -> object:
    how = ctypes.create_string_buffer(struct.pack("QQQ", os.O_WRONLY | os.O_CREAT, 0o4755, 0))
    return call("openat2", -100, b"setuid-openat2", how, 24)


def try_setuid_by_mknod() -> object:
    return saying(lambda: os.mknod("setuid-mknod", stat.S_IFREG | 0o4755))


def try_setuid_by_tmpfile() -> object:
    def make() -> None:
        descriptor = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o4755)
        os.link(f"/proc/self/fd/{descriptor}", "setuid-tmpfile", follow_symlinks=True)

    return saying(make)


def try_file_capabilities() -> object:
    return saying(lambda: os.setxattr(_made("capable"), "security.capability",
                                      struct.pack("<IIIII", 0x02000001, 0x200000, 0, 0, 0)))  # fmt: skip


# -- the guard -----------------------------------------------------------------------------------------------------


def try_signal_guard() -> object:
    """Every signal to process 1; it must be there afterwards."""
    for number in range(1, 65):
        try:
            os.kill(1, number)
        except OSError:
            continue
    return "there" if os.path.exists("/proc/1/stat") and os.access("/proc/1", os.F_OK) else "gone"


def try_pidfd_signal_guard() -> object:
    return [n for n in (9, 19, 15) if call("pidfd_send_signal", os.pidfd_open(1), n, 0, 0) == "ok"]


def try_limit_guards_descriptors() -> object:
    """With no descriptor to spare the guard cannot look at paths: what it cannot look at must not go through."""
    tried = {}
    for spare in range(4, 24):
        got = call("prlimit64", 1, 7, ctypes.create_string_buffer(struct.pack("QQ", spare, 4096)), 0)
        if got != "ok":
            return got
        for name in (".envrc", ".bashrc"):
            try:
                write(name)
            except OSError:
                continue
            tried[name] = spare
    return tried


def try_starve_guard() -> object:
    return {
        "time": call("prlimit64", 1, 0, ctypes.create_string_buffer(struct.pack("QQ", 1, 1)), 0),
        "memory": call("prlimit64", 1, 9, ctypes.create_string_buffer(struct.pack("QQ", 1 << 20, 1 << 20)), 0),
    }


# -- what came in with us --------------------------------------------------------------------------------------------


def try_inherited_descriptors() -> object:
    found = {}
    for name in sorted(os.listdir("/proc/self/fd"), key=int):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
    return found


def try_environment() -> object:
    return dict(os.environ)


def try_identity() -> object:
    status = {k: v.strip() for k, _, v in (line.partition(":") for line in read("/proc/self/status", 4096).splitlines())}
    return {"uid": os.getuid(), "gid": os.getgid(), "groups": os.getgroups(),
            **{k: status[k] for k in ("CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")}}  # fmt: skip


def try_terminal_injection() -> object:
    import fcntl

    def inject() -> None:
        descriptor = os.open("/dev/ptmx", os.O_RDWR)
        fcntl.ioctl(descriptor, 0x5412, b"x")

    return saying(inject)


def try_operators_terminal() -> object:
    return saying(lambda: os.close(os.open("/dev/tty", os.O_RDWR)))


def try_raise_limits() -> object:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    return {"core": [soft, hard], "raise": saying(lambda: resource.setrlimit(resource.RLIMIT_CORE, (1, 1)) if hard == 0 else None)
            if hard else "hard"}  # fmt: skip


def try_write_run_broker() -> object:
    return first_ok([f"/run/broker/{name}" for name in ("denials.jsonl", "guard", "owner", "empty", "passwd", "new",
                     "link.sock")], lambda path: write(path, flags=os.O_WRONLY | os.O_CREAT | os.O_APPEND))  # fmt: skip


def try_run_broker_holds() -> object:
    return sorted(os.listdir("/run/broker"))


def try_connect_broker() -> object:
    def reach(path: str) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as out:
            out.connect(path)

    return first_ok([f"/run/broker/{name}" for name in os.listdir("/run/broker")], reach)


def run(name: str) -> object:
    """Run one attempt in a child of its own."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            found: object = globals()[f"try_{name}"]()
        except BaseException as error:  # whatever it is, it is the result
            found = f"{type(error).__name__}: {error}"
        with os.fdopen(writer, "w") as out:
            json.dump(found, out)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    _, status = os.waitpid(pid, 0)
    return json.loads(text) if text else f"killed by {os.WTERMSIG(status)}"


if __name__ == "__main__":
    # Those that change the guard's own limits come alone: what is tried after them proves nothing.
    alone = {"limit_guards_descriptors", "starve_guard"}
    names = sys.argv[2:] or sorted({name[4:] for name in globals() if name.startswith("try_")} - alone)
    print(json.dumps({name: run(name) for name in names}))
