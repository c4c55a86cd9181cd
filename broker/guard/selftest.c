/* The self-test: a child like any of the workload's tries what must not work, and reports what it got.
 *
 * First without a tracer (a filtered exec must not run then either), then traced, through the same refusal that
 * the gate uses. A proof that is `allowed` is a failure; the broker decides, and does not start the task. */
#include "guard.h"

#include <linux/netlink.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static const char *const names[] = {
    "exec.untraced-enosys", "socket.vsock", "socket.packet", "socket.alg", "socket.netlink", "ptrace", "unshare",
    "io_uring", "x32", "clone3", "write.denied", "proc.write", "exec.denied",
};
enum {
    UNTRACED, VSOCK, PACKET, ALG, NETLINK, PTRACE_ME, UNSHARE, IO_URING, X32_CALL, CLONE3, WRITE_FILE, PROC_WRITE,
    DENIED, COUNT,
};
enum { PENDING = -1, SKIPPED = -2, WORKED = 0 };

static int outcome(long result) { return result < 0 ? errno : WORKED; }

static int try_open(const char *path, int flags) {
    int fd = open(path, flags | O_CLOEXEC, 0600);
    int got = outcome(fd);
    if (fd >= 0) close(fd);
    return got;
}

static int try_exec(void) {
    char *argv[] = {guard.setup.test_exec, NULL}, *env[] = {NULL};
    return outcome(execve(guard.setup.test_exec, argv, env));
}

static int try_proc(void) {
    int kernel = try_open("/proc/sys/kernel/core_pattern", O_WRONLY);
    if (!kernel || !guard.landlock) return kernel;
    return try_open("/proc/self/comm", O_WRONLY); /* its own, so that only Landlock can refuse */
}

static void __attribute__((noreturn)) attempt(int *got, int pipe) {
    char go;
    if (prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) || filter_install()) _exit(1);
    got[UNTRACED] = try_exec();
    got[VSOCK] = outcome(socket(40 /* AF_VSOCK */, SOCK_STREAM, 0));
    got[PACKET] = outcome(socket(AF_PACKET, SOCK_RAW, 0));
    got[ALG] = outcome(socket(38 /* AF_ALG */, SOCK_SEQPACKET, 0));
    got[NETLINK] = outcome(socket(AF_NETLINK, SOCK_RAW, NETLINK_NETFILTER));
    got[PTRACE_ME] = outcome(ptrace(PTRACE_TRACEME, 0, 0, 0));
    got[UNSHARE] = outcome(unshare(CLONE_NEWUSER));
    got[IO_URING] = outcome(syscall(SYS_io_uring_setup, 1, NULL));
    if (got[IO_URING] != EPERM) got[IO_URING] = WORKED; /* anything else came from the call itself */
#ifdef __x86_64__
    got[X32_CALL] = outcome(syscall(0x40000000 | SYS_getpid));
#else
    got[X32_CALL] = SKIPPED;
#endif
    got[CLONE3] = outcome(syscall(SYS_clone3, NULL, 0));
    if (got[CLONE3] != ENOSYS) got[CLONE3] = WORKED;
    if (write(pipe, "s", 1) != 1 || read(pipe, &go, 1) != 1) _exit(1);
    got[WRITE_FILE] = *guard.setup.test_write ? try_open(guard.setup.test_write, O_WRONLY | O_CREAT) : SKIPPED;
    got[PROC_WRITE] = try_proc();
    got[DENIED] = try_exec();
    _exit(0);
}

/* What the gate does first: read the path from the stopped child. */
static bool reads_the_path(pid_t pid, uint64_t at) {
    struct memory m;
    char path[PATH_MAX];
    if (memory_open(&m, pid)) return false;
    ssize_t n = memory_string(&m, at, path, sizeof path);
    memory_close(&m);
    return n >= 0 && !strcmp(path, guard.setup.test_exec);
}

/* Refuse the child's exec, let all else pass. Returns whether the exec was seen and could be read. */
static bool watch(pid_t pid) {
    int status;
    bool seen = false;
    while (waitpid(pid, &status, __WALL) == pid && WIFSTOPPED(status)) {
        uint64_t nr, args[6];
        if (status >> 16 == PTRACE_EVENT_EXEC) kill(pid, SIGKILL);
        else if (status >> 16 == PTRACE_EVENT_SECCOMP && tracee_syscall(pid, &nr, args) && nr == SYS_execve) {
            seen = reads_the_path(pid, args[0]);
            tracee_refuse(pid, EACCES);
        } else tracee_resume(pid, 0);
    }
    return seen;
}

static void run(int *got) {
    int pair[2];
    char stage;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)) return; /* every proof stays "never tried" */
    pid_t pid = fork();
    if (!pid) attempt(got, pair[1]);
    close(pair[1]);
    long options = PTRACE_O_TRACESECCOMP | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL;
    bool traced = pid > 0 && read(pair[0], &stage, 1) == 1 && !ptrace(PTRACE_SEIZE, pid, 0, (void *)options);
    if (traced) traced = send(pair[0], "g", 1, MSG_NOSIGNAL) == 1;
    close(pair[0]);
    if (pid > 0 && !traced) kill(pid, SIGKILL);
    bool seen = pid > 0 && watch(pid);
    if (!seen) got[DENIED] = PENDING;
}

static void put_proof(int which, int got) {
    char text[128];
    const char *evidence = got > 0 ? strerrorname_np(got) : NULL;
    /* Without a tracer the exec must fail, and in just this way. */
    bool ok = which == UNTRACED ? got == ENOSYS : got > 0;
    const char *result = got == SKIPPED ? "skipped" : ok ? "refused" : "allowed";
    if (!evidence) evidence = got == SKIPPED ? "nothing to try" : got == WORKED ? "it worked" : "never tried";
    int n = snprintf(text, sizeof text, "%s%c%s%c%s", names[which], 0, result, 0, evidence);
    put_blob(text, (size_t)n);
}

void selftest_run(void) {
    if (!(guard.setup.flags & SETUP_SELFTEST)) return put_u32(0);
    int *got = mmap(NULL, COUNT * sizeof *got, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (got == MAP_FAILED) guard_exit(71);
    for (int i = 0; i < COUNT; i++) got[i] = PENDING;
    run(got);
    put_u32(COUNT);
    for (int i = 0; i < COUNT; i++) put_proof(i, got[i]);
    munmap(got, COUNT * sizeof *got);
}
