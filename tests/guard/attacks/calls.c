/* calls: try system calls that must not work, one line each: NAME ERRNO. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static void say(const char *name, long result) {
    const char *why = result < 0 ? strerrorname_np(errno) : "ok";
    printf("%s %s\n", name, why ? why : "?");
}

#define TRY(name, ...) errno = 0, say(#name, syscall(SYS_##name, ##__VA_ARGS__, 0, 0, 0, 0, 0, 0))

int main(void) {
    TRY(unshare, CLONE_NEWUSER);
    TRY(setns, -1);
    TRY(mount);
    TRY(umount2);
    TRY(pivot_root);
    TRY(chroot, "/tmp");
    TRY(fsopen);
    TRY(open_tree);
    TRY(move_mount);
    TRY(mount_setattr);
    TRY(ptrace, PTRACE_TRACEME);
    TRY(process_vm_readv, getpid());
    TRY(process_vm_writev, getpid());
    TRY(pidfd_getfd);
    TRY(io_uring_setup, 1);
    TRY(io_uring_enter);
    TRY(io_uring_register);
    TRY(userfaultfd);
    TRY(bpf);
    TRY(perf_event_open);
    TRY(keyctl);
    TRY(add_key);
    TRY(request_key);
    TRY(open_by_handle_at);
    TRY(name_to_handle_at);
    TRY(kexec_load);
    TRY(init_module);
    TRY(finit_module, -1);
    TRY(delete_module);
    TRY(reboot);
    TRY(quotactl);
    TRY(swapon);
    TRY(acct);
    TRY(syslog, 3);
    TRY(settimeofday);
    TRY(clone3);
#ifdef __x86_64__
    TRY(iopl, 3);
    TRY(ioperm);
    TRY(modify_ldt);
    errno = 0, say("x32", syscall(0x40000000 | SYS_getpid));
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(20 /* getpid */) : "memory");
    errno = (int)-result, say("int80", result < 0 ? -1 : 0);
#endif
    errno = 0, say("unknown", syscall(470));
    errno = 0, say("prctl.mm", prctl(PR_SET_MM, 1, 0, 0, 0));
    errno = 0, say("ioctl.tiocsti", ioctl(0, TIOCSTI, "x"));
    errno = 0, say("ioctl.tiocsti.high", syscall(SYS_ioctl, 0, 0x100000000UL | TIOCSTI, "x"));
    errno = 0, say("ioctl.tiocsetd", ioctl(0, TIOCSETD, &(int){21}));
    errno = 0, say("clone.newuser", syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0));
    errno = 0, say("clone.untraced", syscall(SYS_clone, CLONE_UNTRACED | SIGCHLD, 0, 0, 0, 0));
    errno = 0, say("clone.untraced.high", syscall(SYS_clone, 0x100000000UL | CLONE_UNTRACED | SIGCHLD, 0, 0, 0, 0));
    for (int family = 0; family < 46; family++) {
        if (family == AF_UNIX || family == AF_INET || family == AF_INET6 || family == AF_NETLINK) continue;
        char name[32];
        snprintf(name, sizeof name, "socket.%d", family);
        errno = 0, say(name, socket(family, SOCK_STREAM, 0));
    }
    errno = 0, say("socket.raw", socket(AF_INET, SOCK_RAW, 255));
    errno = 0, say("socket.raw.flags", socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 1));
    errno = 0, say("socket.raw6", socket(AF_INET6, SOCK_RAW, 58));
    errno = 0, say("socket.packet.old", socket(AF_INET, SOCK_PACKET, 0));
    errno = 0, say("socket.sctp", socket(AF_INET, SOCK_STREAM, 132));
    for (int protocol = 1; protocol < 23; protocol++) {
        char name[32];
        snprintf(name, sizeof name, "netlink.%d", protocol);
        errno = 0, say(name, socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, protocol));
    }
    puts("-- these must work");
    errno = 0, say("unix", socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    errno = 0, say("tcp", socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    errno = 0, say("udp6", socket(AF_INET6, SOCK_DGRAM, 17));
    errno = 0, say("route", socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
    int pair[2];
    errno = 0, say("socketpair", socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    errno = 0, say("memfd", syscall(SYS_memfd_create, "x", 0));
    return 0;
}
