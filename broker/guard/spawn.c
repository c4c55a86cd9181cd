/* From a SPAWN message to a running program.
 *
 * The child prepares itself, installs the filter, and only then becomes dumpable, because only a dumpable process
 * can be seized, and a dumpable one without the filter would be worth hijacking. It waits until it is seized, and
 * execs. Until then a filtered call returns ENOSYS. Its own failures come back over the report socket, which closes
 * on exec. */
#include "guard.h"

#include <linux/capability.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <termios.h>

#ifndef TIOCGPTPEER
#define TIOCGPTPEER _IO('T', 0x41)
#endif

struct report {
    int error;
    char step[28];
};

static const long TRACE_OPTIONS = PTRACE_O_TRACEEXEC | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE |
                                  PTRACE_O_TRACESECCOMP | PTRACE_O_EXITKILL;

static void failed(uint32_t id, int error, const char *step) {
    message_begin(SPAWN_FAILED, 0, id);
    put_u32((uint32_t)error);
    put_text(step);
    message_send(-1);
}

/* In the child */

static int report_to;

static void __attribute__((noreturn)) give_up(const char *step) {
    struct report r = {.error = errno};
    snprintf(r.step, sizeof r.step, "%s", step);
    (void)!write(report_to, &r, sizeof r);
    _exit(127);
}

static void limit(int which, uint64_t value, const char *step) {
    struct rlimit l;
    if (getrlimit(which, &l)) give_up(step);
    if (l.rlim_max != RLIM_INFINITY && value > l.rlim_max) value = l.rlim_max;
    l.rlim_cur = l.rlim_max = value;
    if (setrlimit(which, &l)) give_up(step);
}

/* An ignored SIGINT or a blocked mask of whoever started the container must not reach the workload. The calls are the
 * kernel's own: libc keeps signals 32 and 33 for itself and leaves them as they were. */
static void default_signals(void) {
    unsigned long normal[4] = {0}, none = 0; /* handler, flags, restorer, mask: rt_sigaction(2) */
    for (int s = 1; s < NSIG; s++) syscall(SYS_rt_sigaction, s, normal, NULL, sizeof none); /* SIGKILL, SIGSTOP: EINVAL */
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, NULL, sizeof none);
}

static void drop_capabilities(void) {
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {0};
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    if (syscall(SYS_capset, &head, none)) give_up("capabilities");
}

static void take_descriptors(const struct spawn_request *r, const int descriptors[3]) {
    for (int i = 0; i < 3; i++) /* all are above 2: main.c keeps 0 to 2 taken */
        if (dup2(descriptors[i], i) < 0) give_up("descriptors");
    if (setsid() < 0) give_up("setsid");
    if (r->flags & SPAWN_TERMINAL && ioctl(0, TIOCSCTTY, 0)) give_up("terminal");
    /* The broker's socket must not be in a process that others can look into. Before Linux 5.9 there is no
     * close_range, and O_CLOEXEC, which everything has, must do. */
    if (dup3(report_to, 3, O_CLOEXEC) != 3) give_up("descriptors");
    report_to = 3;
    syscall(SYS_close_range, 4, ~0u, 0);
}

static const char *variable(const struct strings *env, const char *name) {
    size_t n = strlen(name);
    for (uint32_t i = 0; i < env->n; i++)
        if (!strncmp(env->v[i], name, n) && env->v[i][n] == '=') return env->v[i] + n + 1;
    return NULL;
}

/* The first executable file of that name in PATH, so that only one start is asked about. */
static const char *find_program(const struct spawn_request *r) {
    static char found[PATH_MAX];
    const char *name = r->argv.v[0], *path = variable(&r->env, "PATH");
    int error = ENOENT;
    if (strchr(name, '/')) return name;
    if (!path) path = "/usr/local/bin:/usr/bin:/bin";
    for (; *name; path++) {
        size_t n = strcspn(path, ":");
        struct stat st;
        int size = snprintf(found, sizeof found, "%.*s/%s", (int)(n ? n : 1), n ? path : ".", name);
        if (size > 0 && (size_t)size < sizeof found && !stat(found, &st) && S_ISREG(st.st_mode)) {
            if (!access(found, X_OK)) return found;
            error = EACCES;
        }
        path += n;
        if (!*path) break;
    }
    errno = error;
    give_up("exec");
}

static void __attribute__((noreturn)) become(const struct spawn_request *r, const int descriptors[3], int report) {
    char go;
    report_to = report;
    take_descriptors(r, descriptors);
    default_signals();
    umask(022);
    if (guard.setup.nofile) limit(RLIMIT_NOFILE, guard.setup.nofile, "limit of open files");
    if (guard.setup.file_size) limit(RLIMIT_FSIZE, guard.setup.file_size, "limit of file size");
    if (guard.setup.nproc) limit(RLIMIT_NPROC, guard.setup.nproc, "limit of processes");
    limit(RLIMIT_CORE, 0, "limit of core files");
    if (chdir(r->cwd)) give_up("chdir");
    drop_capabilities();
    const char *program = find_program(r);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) give_up("no_new_privs");
    int error = filter_install();
    if (error) errno = -error, give_up("seccomp");
    if (prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)) give_up("dumpable");
    /* No answer: the guard died, or could not seize this process. */
    if (write(report_to, "d", 1) != 1 || read(report_to, &go, 1) != 1) _exit(127);
    execve(program, r->argv.v, r->env.v);
    give_up("exec");
}

/* In the guard */

static int open_terminal(const struct spawn_request *r, int *slave) {
    struct winsize size = {.ws_row = (unsigned short)r->rows, .ws_col = (unsigned short)r->columns};
    int unlocked = 0, master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (master < 0) return -1;
    if (!ioctl(master, TIOCSPTLCK, &unlocked) && !ioctl(master, TIOCSWINSZ, &size)) {
        *slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
        if (*slave >= 0) return master;
    }
    int error = errno;
    close(master);
    errno = error;
    return -1;
}

void spawn_start(uint32_t id, const struct spawn_request *r, int descriptors[3]) {
    int report[2], master = -1, opened = -1;
    if (guard.setup.live_limit && guard.live >= guard.setup.live_limit) return failed(id, EAGAIN, "limit of tasks");
    if (r->flags & SPAWN_TERMINAL) {
        master = open_terminal(r, &opened);
        if (master < 0) return failed(id, errno, "terminal");
    } else if (r->flags & SPAWN_NO_DESCRIPTORS) {
        opened = open("/dev/null", O_RDWR | O_CLOEXEC);
        if (opened < 0) return failed(id, errno, "/dev/null");
    }
    if (opened >= 0) descriptors[0] = descriptors[1] = descriptors[2] = opened;
    pid_t pid = -1;
    if (!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, report)) {
        pid = fork();
        if (!pid) become(r, descriptors, report[1]);
        close(report[1]);
        if (pid < 0) close(report[0]);
    }
    int error = errno;
    if (opened >= 0) close(opened);
    if (pid < 0) {
        if (master >= 0) close(master);
        return failed(id, error, "fork");
    }
    struct spawn *s = spawn_new(id, pid, report[0], master);
    task_new(pid, s, r->scope)->tgid = pid;
    struct report got = {0};
    ssize_t n = read(report[0], &got, sizeof got); /* the child is ours, and quick */
    if (n == 1 && ptrace(PTRACE_SEIZE, pid, 0, (void *)TRACE_OPTIONS)) got = (struct report){errno, "ptrace"};
    else if (n == 1 && send(report[0], "g", 1, MSG_NOSIGNAL) == 1) return;
    else if (n != sizeof got) got = (struct report){ECANCELED, "killed"};
    kill(pid, SIGKILL); /* its end finds no report, and says nothing */
    failed(id, got.error, got.step);
    close(s->report);
    s->report = -1;
}

void spawn_started(struct spawn *s) {
    s->started = true;
    close(s->report);
    s->report = -1;
    message_begin(SPAWNED, s->master >= 0 ? 1 : 0, s->id);
    put_u32((uint32_t)s->pid);
    message_send(s->master);
    if (s->master >= 0) close(s->master);
    s->master = -1;
}

static uint64_t micros(struct timeval t) { return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_usec; }

void spawn_ended(struct spawn *s, int status, const struct rusage *usage) {
    if (s->started) {
        message_begin(EXITED, 0, s->id);
        put_u32((uint32_t)status);
        put_u64(micros(usage->ru_utime));
        put_u64(micros(usage->ru_stime));
        put_u64((uint64_t)usage->ru_maxrss);
        message_send(-1);
    } else if (s->report >= 0) {
        struct report r;
        if (recv(s->report, &r, sizeof r, MSG_DONTWAIT) != sizeof r) r = (struct report){ECANCELED, "killed"};
        failed(s->id, r.error, r.step);
    }
}
