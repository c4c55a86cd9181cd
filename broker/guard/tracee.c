/* A traced process seen from outside: its memory, its system call, its standard error.
 *
 * In: a stopped tracee. Nothing read here is trusted: sizes are bounded, pointers may point anywhere, and
 * what was read before an exec is compared with what the kernel took (gate.c). */
#include "guard.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <termios.h>
#ifdef __x86_64__
#include <linux/audit.h>
#include <sys/user.h>
#define NATIVE_ARCH AUDIT_ARCH_X86_64
#elif defined __aarch64__
#include <elf.h>
#include <linux/audit.h>
#include <sys/user.h>
#define NATIVE_ARCH AUDIT_ARCH_AARCH64
#ifndef NT_ARM_SYSTEM_CALL
#define NT_ARM_SYSTEM_CALL 0x404
#endif
#else
#error "the guard knows x86-64 and arm64"
#endif

int memory_open(struct memory *m, pid_t tid) {
    char name[32];
    snprintf(name, sizeof name, "/proc/%d/mem", tid);
    m->words.n = m->pointers.n = 0;
    m->fd = open(name, O_RDONLY | O_CLOEXEC);
    return m->fd < 0 ? -errno : 0;
}

void memory_close(struct memory *m) { close(m->fd); }

/* The bytes at `at` up to the end of its page: a page is mapped as a whole or not at all. */
static const char *look(int fd, struct window *w, uint64_t at, size_t *n) {
    if (at < w->at || at - w->at >= w->n) {
        size_t want = sizeof w->bytes - at % sizeof w->bytes;
        w->n = 0;
        if (at > INT64_MAX) return NULL;
        ssize_t got = pread(fd, w->bytes, want, (off_t)at);
        if (got <= 0) return NULL;
        w->at = at;
        w->n = (size_t)got;
    }
    *n = w->n - (size_t)(at - w->at);
    return w->bytes + (at - w->at);
}

ssize_t memory_string(struct memory *m, uint64_t at, char *out, size_t size) {
    size_t length = 0;
    for (;;) {
        size_t n;
        const char *bytes = look(m->fd, &m->words, at, &n);
        if (!bytes) return -EFAULT;
        const char *nul = memchr(bytes, 0, n);
        if (nul) n = (size_t)(nul - bytes) + 1;
        if (n > size - length) return -E2BIG;
        memcpy(out + length, bytes, n);
        length += n;
        at += n;
        if (nul) return (ssize_t)length - 1;
    }
}

/* An array of pointers ended by NULL, as execve takes it: its strings one after another, each with its NUL. */
int memory_words(struct memory *m, uint64_t at, char *out, size_t size, size_t *used, uint32_t *count) {
    *used = *count = 0;
    if (!at) return 0;
    for (;; at += sizeof(uint64_t)) {
        uint64_t pointer;
        for (size_t have = 0; have < sizeof pointer;) { /* an unaligned array may cross a page */
            size_t n;
            const char *bytes = look(m->fd, &m->pointers, at + have, &n);
            if (!bytes) return -EFAULT;
            if (n > sizeof pointer - have) n = sizeof pointer - have;
            memcpy((char *)&pointer + have, bytes, n);
            have += n;
        }
        if (!pointer) return 0;
        ssize_t length = memory_string(m, pointer, out + *used, size - *used);
        if (length < 0) return (int)length;
        *used += (size_t)length + 1;
        ++*count;
    }
}

bool tracee_syscall(pid_t tid, uint64_t *nr, uint64_t args[6]) {
    struct __ptrace_syscall_info info;
    long got = ptrace(PTRACE_GET_SYSCALL_INFO, tid, (void *)sizeof info, &info);
    if (got < (long)(offsetof(struct __ptrace_syscall_info, seccomp.args) + sizeof info.seccomp.args)) return false;
    if (info.op != PTRACE_SYSCALL_INFO_SECCOMP || info.arch != NATIVE_ARCH) return false;
    *nr = info.seccomp.nr;
    memcpy(args, info.seccomp.args, sizeof info.seccomp.args);
    return true;
}

bool tracee_makes_thread(pid_t tid) {
#ifdef __x86_64__
    long nr = ptrace(PTRACE_PEEKUSER, tid, (void *)offsetof(struct user, regs.orig_rax), 0);
    long flags = ptrace(PTRACE_PEEKUSER, tid, (void *)offsetof(struct user, regs.rdi), 0);
#else
    struct user_regs_struct regs = {0};
    struct iovec all = {&regs, sizeof regs};
    ptrace(PTRACE_GETREGSET, tid, (void *)NT_PRSTATUS, &all);
    long nr = (long)regs.regs[8], flags = (long)regs.regs[0];
#endif
    return nr == SYS_clone && flags & CLONE_THREAD;
}

/* Make the call that the tracee is stopped before return -error without running.
 *
 * INVARIANT: a call that could not be refused does not run either (test_an_unusual_exec_is_refused_when_denied). */
void tracee_refuse(pid_t tid, int error) {
    bool done;
#ifdef __x86_64__
    done = ptrace(PTRACE_POKEUSER, tid, (void *)offsetof(struct user, regs.orig_rax), (void *)-1L) == 0 &&
           ptrace(PTRACE_POKEUSER, tid, (void *)offsetof(struct user, regs.rax), (void *)(long)-error) == 0;
#else
    int none = -1;
    struct iovec call = {&none, sizeof none};
    struct user_regs_struct regs;
    struct iovec all = {&regs, sizeof regs};
    done = ptrace(PTRACE_SETREGSET, tid, (void *)NT_ARM_SYSTEM_CALL, &call) == 0 &&
           ptrace(PTRACE_GETREGSET, tid, (void *)NT_PRSTATUS, &all) == 0;
    regs.regs[0] = (unsigned long long)(long long)-error;
    done = done && ptrace(PTRACE_SETREGSET, tid, (void *)NT_PRSTATUS, &all) == 0;
#endif
    /* ESRCH: it is not stopped any more, and only SIGKILL ends a ptrace stop. It runs nothing; a kill of ours would hit
     * its whole process, another thread's approved exec included, which is what is ending it. */
    if (!done && errno == ESRCH) return;
    if (!done) {
        kill(tid, SIGKILL);
        return;
    }
    tracee_resume(tid, 0);
}

void tracee_resume(pid_t tid, int signal) { ptrace(PTRACE_CONT, tid, 0, (void *)(long)signal); }

/* Whether a full screen is drawn there: a sentence in its middle would spoil it, and nobody could read it. */
static bool is_raw(int fd) {
    struct termios now;
    return !tcgetattr(fd, &now) && !(now.c_lflag & ICANON);
}

/* Whether a file is one that output is collected in: in the task's temporary space, which nobody keeps, and only appended to.
 * The content of every other file is the workload's business. */
static bool collects_output(const struct stat *st) {
    struct stat scratch;
    return S_ISREG(st->st_mode) && !stat("/tmp", &scratch) && st->st_dev == scratch.st_dev;
}

/* Write with the process's own description: a socket cannot be opened, and a file opened anew could be another one by now. */
static void tell_through_its_own(pid_t tid, const char *text, size_t size) {
    int process = (int)syscall(SYS_pidfd_open, tid, 0);
    int fd = process < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, process, 2, 0);
    struct stat now;
    if (fd >= 0 && !fstat(fd, &now)) {
        if (S_ISSOCK(now.st_mode)) send(fd, text, size, MSG_DONTWAIT | MSG_NOSIGNAL);
        else if (collects_output(&now) && (fcntl(fd, F_GETFL) & O_APPEND)) (void)!write(fd, text, size);
    }
    if (fd >= 0) close(fd);
    if (process >= 0) close(process);
}

/* The broker's sentence on the process's standard error: only where writing cannot block. */
void tracee_tell(pid_t tid, const char *text) {
    char name[32];
    struct stat st;
    size_t size = strlen(text);
    if (!size) return;
    snprintf(name, sizeof name, "/proc/%d/fd/2", tid);
    if (stat(name, &st)) return;
    bool terminal = S_ISCHR(st.st_mode) && major(st.st_rdev) >= 136 && major(st.st_rdev) <= 143; /* pts */
    if (S_ISFIFO(st.st_mode) || terminal) {
        int fd = open(name, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC); /* a description of our own */
        struct stat now; /* O_NONBLOCK of a named pipe without a reader fails, which is fine */
        if (fd >= 0 && !fstat(fd, &now) && now.st_dev == st.st_dev && now.st_ino == st.st_ino && !(terminal && is_raw(fd)))
            (void)!write(fd, text, size);
        if (fd >= 0) close(fd);
    } else if ((S_ISSOCK(st.st_mode) || collects_output(&st)) && guard.pidfd_getfd) {
        tell_through_its_own(tid, text, size);
    }
}

ssize_t read_file(const char *path, char *out, size_t size) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -errno;
    size_t have = 0;
    ssize_t got;
    while ((got = read(fd, out + have, size - have)) > 0) have += (size_t)got;
    char more;
    if (got == 0 && have == size && read(fd, &more, 1) > 0) got = -E2BIG;
    else if (got < 0) got = -errno;
    close(fd);
    return got < 0 ? got : (ssize_t)have;
}
