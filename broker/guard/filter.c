/* The workload's seccomp filter (L2): what no program in the sandbox may call, and what the guard looks at.
 *
 * Reviewed up to the call numbers below (Linux 6.10); newer ones do not exist for the workload. */
#include "guard.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif
#ifndef SYS_lsm_set_self_attr
#define SYS_lsm_set_self_attr 460
#endif
enum { LAST_REVIEWED = 462 /* mseal */, X32 = 0x40000000, SIZE = 1024, TRACE_EXEC = 1, TRACE_FILE = 2, TRACE_NET = 3 };
#ifndef SECCOMP_FILTER_FLAG_NEW_LISTENER
#define SECCOMP_FILTER_FLAG_NEW_LISTENER 8
#endif
#define FAIL(error) (SECCOMP_RET_ERRNO | (error))
#define NEW_NAMESPACES                                                                                  \
    (CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET)

#ifdef __x86_64__
#define NATIVE_ARCH AUDIT_ARCH_X86_64
#else
#define NATIVE_ARCH AUDIT_ARCH_AARCH64
#endif

static struct sock_filter program[SIZE];
static unsigned length, block;

static void emit(unsigned code, unsigned k, unsigned yes, unsigned no) {
    if (length == SIZE || yes > 255 || no > 255) abort();
    program[length++] = (struct sock_filter)BPF_JUMP((unsigned short)code, k, (unsigned char)yes, (unsigned char)no);
}

static void load(unsigned offset) { emit(BPF_LD | BPF_W | BPF_ABS, offset, 0, 0); }
static void load_nr(void) { load(offsetof(struct seccomp_data, nr)); }
/* The low half of an argument: what the kernel takes of an int. (Little-endian on both architectures.) */
static void load_arg(unsigned i) { load((unsigned)offsetof(struct seccomp_data, args) + 8 * i); }
static void load_arg_high(unsigned i) { load((unsigned)offsetof(struct seccomp_data, args) + 8 * i + 4); }
static void result(unsigned action) { emit(BPF_RET | BPF_K, action, 0, 0); }
static void if_equal(unsigned k, unsigned action) { emit(BPF_JMP | BPF_JEQ | BPF_K, k, 0, 1), result(action); }
static void if_any_bit(unsigned k, unsigned action) { emit(BPF_JMP | BPF_JSET | BPF_K, k, 0, 1), result(action); }
static void if_at_least(unsigned k, unsigned action) { emit(BPF_JMP | BPF_JGE | BPF_K, k, 0, 1), result(action); }

/* begin(nr) … end(otherwise): a block for one call; it always ends in a result. */
static void begin(unsigned nr) {
    block = length;
    emit(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 0);
}

static void end(unsigned otherwise) {
    result(otherwise);
    if (length - block - 1 > 255) abort();
    program[block].jf = (unsigned char)(length - block - 1);
}

static void only_native(void) {
    load(offsetof(struct seccomp_data, arch));
    emit(BPF_JMP | BPF_JEQ | BPF_K, NATIVE_ARCH, 1, 0);
    result(FAIL(ENOSYS)); /* int 0x80 and 32-bit programs: their numbers mean other calls */
    load_nr();
    if_at_least(LAST_REVIEWED + 1, FAIL(ENOSYS)); /* x32 (0x40000000) included */
}

/* Sockets: files and loopback only. netlink for getifaddrs, and nothing that loads a protocol module. */
static void sockets(void) {
    begin(SYS_socket);
    load_arg(0);
    emit(BPF_JMP | BPF_JEQ | BPF_K, AF_NETLINK, 0, 4);
    load_arg(2);
    if_equal(0 /* NETLINK_ROUTE */, SECCOMP_RET_ALLOW);
    result(FAIL(EPERM));
    if_equal(AF_UNIX, SECCOMP_RET_ALLOW);
    emit(BPF_JMP | BPF_JEQ | BPF_K, AF_INET, 2, 0);
    emit(BPF_JMP | BPF_JEQ | BPF_K, AF_INET6, 1, 0);
    result(FAIL(EAFNOSUPPORT));
    load_arg(1);
    emit(BPF_ALU | BPF_AND | BPF_K, 0xf, 0, 0); /* without SOCK_CLOEXEC and SOCK_NONBLOCK */
    emit(BPF_JMP | BPF_JEQ | BPF_K, SOCK_STREAM, 2, 0);
    emit(BPF_JMP | BPF_JEQ | BPF_K, SOCK_DGRAM, 1, 0);
    result(FAIL(EPERM));
    load_arg(2);
    if_equal(0, SECCOMP_RET_ALLOW);
    if_equal(6 /* TCP */, SECCOMP_RET_ALLOW);
    if_equal(17 /* UDP */, SECCOMP_RET_ALLOW);
    end(FAIL(EPROTONOSUPPORT));

    begin(SYS_socketpair);
    load_arg(0);
    if_equal(AF_UNIX, SECCOMP_RET_ALLOW);
    end(FAIL(EAFNOSUPPORT));

    if_equal(SYS_connect, SECCOMP_RET_TRACE | TRACE_NET);
    begin(SYS_sendto);
    load_arg(4); /* the address: send(2) gives none, and stays as fast as it is */
    if_any_bit(~0u, SECCOMP_RET_TRACE | TRACE_NET);
    load_arg_high(4);
    if_any_bit(~0u, SECCOMP_RET_TRACE | TRACE_NET);
    end(SECCOMP_RET_ALLOW);
}

/* A file that is setuid or setgid runs with its owner's rights for everybody on the host, after the sandbox. */
static void no_setuid(unsigned nr, unsigned mode, bool files) {
    begin(nr);
    load_arg(mode);
    if_any_bit(S_ISUID | S_ISGID, FAIL(EPERM));
    end(files ? SECCOMP_RET_TRACE | TRACE_FILE : SECCOMP_RET_ALLOW);
}

/* The mode counts only where a file is made: elsewhere its register holds anything. */
static void opens(unsigned nr, unsigned flags, bool files) {
    begin(nr);
    load_arg(flags);
    emit(BPF_JMP | BPF_JSET | BPF_K, O_CREAT | (O_TMPFILE & ~O_DIRECTORY), 0, 3);
    load_arg(flags + 1);
    if_any_bit(S_ISUID | S_ISGID, FAIL(EPERM));
    load_arg(flags);
    if (files) if_any_bit(O_WRONLY | O_RDWR | O_CREAT | O_TRUNC, SECCOMP_RET_TRACE | TRACE_FILE);
    end(SECCOMP_RET_ALLOW);
}

static void by_argument(bool files) {
    opens(SYS_openat, 2, files);
    no_setuid(SYS_fchmod, 1, false);
    no_setuid(SYS_fchmodat, 2, files);
    no_setuid(SYS_fchmodat2, 2, files);
    no_setuid(SYS_mknodat, 2, files);
#ifdef SYS_open
    opens(SYS_open, 1, files);
    no_setuid(SYS_chmod, 1, files);
    no_setuid(SYS_creat, 1, files);
    no_setuid(SYS_mknod, 1, files);
#endif
    /* Its flags and mode are in memory, where they can change after any look; libraries fall back to openat. */
    if_equal(SYS_openat2, FAIL(ENOSYS));

    /* The guard has the workload's uid, which is all that prlimit asks for: without descriptors it would be blind. */
    begin(SYS_prlimit64);
    load_arg(0);
    if_equal(0, SECCOMP_RET_ALLOW);
    end(FAIL(EPERM));

    begin(SYS_ioctl); /* typing into somebody's terminal; line disciplines */
    load_arg(1);
    if_equal(TIOCSTI, FAIL(EPERM));
    if_equal(TIOCSETD, FAIL(EPERM));
    if_equal(0x541c /* TIOCLINUX */, FAIL(EPERM));
    end(SECCOMP_RET_ALLOW);

    begin(SYS_clone);
    load_arg(0);
    if_any_bit(NEW_NAMESPACES | CLONE_UNTRACED, FAIL(EPERM));
    end(SECCOMP_RET_ALLOW);

    begin(SYS_prctl);
    load_arg(0);
    if_equal(PR_SET_MM, FAIL(EPERM));
    end(SECCOMP_RET_ALLOW);

    /* A program may tighten its own filter. But a listener could answer "continue" to an execve, and that
     * takes precedence over our RET_TRACE. */
    begin(SYS_seccomp);
    load_arg(1);
    if_any_bit(SECCOMP_FILTER_FLAG_NEW_LISTENER, FAIL(EPERM));
    end(SECCOMP_RET_ALLOW);
    sockets();
}

static const unsigned refused[] = {
    /* namespaces and mounts */
    SYS_unshare, SYS_setns, SYS_mount, SYS_umount2, SYS_pivot_root, SYS_chroot, SYS_fsopen, SYS_fsconfig,
    SYS_fsmount, SYS_fspick, SYS_move_mount, SYS_open_tree, SYS_mount_setattr, SYS_quotactl, SYS_quotactl_fd,
    SYS_swapon, SYS_swapoff,
    /* other processes */
    SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_process_madvise, SYS_pidfd_getfd,
    /* large kernel surfaces, or ways around the calls that are looked at */
    SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register, SYS_userfaultfd, SYS_bpf, SYS_perf_event_open,
    SYS_keyctl, SYS_add_key, SYS_request_key, SYS_open_by_handle_at, SYS_name_to_handle_at, SYS_fanotify_init,
    SYS_fanotify_mark, SYS_lookup_dcookie, SYS_nfsservctl, SYS_lsm_set_self_attr,
    /* the machine */
    SYS_kexec_load, SYS_kexec_file_load, SYS_init_module, SYS_finit_module, SYS_delete_module, SYS_reboot,
    SYS_acct, SYS_settimeofday, SYS_clock_settime, SYS_syslog, SYS_vhangup, SYS_sethostname, SYS_setdomainname,
#ifdef __x86_64__
    SYS_iopl, SYS_ioperm, SYS_modify_ldt, SYS_uselib, SYS__sysctl, SYS_sysfs,
#endif
};

void filter_build(bool files) {
    unsigned changes[64];
    length = 0;
    only_native();
    if_equal(SYS_execve, SECCOMP_RET_TRACE | TRACE_EXEC);
    if_equal(SYS_execveat, SECCOMP_RET_TRACE | TRACE_EXEC);
    if_equal(SYS_clone3, FAIL(ENOSYS)); /* its flags are in memory; libc falls back to clone */
    by_argument(files);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) if_equal(refused[i], FAIL(EPERM));
    unsigned n = files ? files_syscalls(changes, 64) : 0;
    for (unsigned i = 0; i < n; i++) if_equal(changes[i], SECCOMP_RET_TRACE | TRACE_FILE);
    result(SECCOMP_RET_ALLOW);
}

int filter_install(void) {
    struct sock_fprog filter = {.len = (unsigned short)length, .filter = program};
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter) ? -errno : 0;
}
