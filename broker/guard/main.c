/* The guard's start, the broker's messages, and the one loop. */
#include "guard.h"

#include <linux/netlink.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

enum { USAGE = 64, EVENTS_AT_ONCE = 256 };

struct guard guard = {.socket = -1};

void guard_exit(int code) {
    _exit(code); /* the kernel kills every traced process: PTRACE_O_EXITKILL, and we are process 1 */
}

static void __attribute__((noreturn)) fatal(const char *step, int error) {
    message_begin(FATAL, 0, 0);
    put_text(step);
    put_u32((uint32_t)error);
    message_send(-1);
    guard_exit(78);
}

static int connect_to(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) return -1;
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address)) return -1;
    return fd;
}

/* Nothing inherited stays open but 0 to 2 and the broker's socket, which moves to 3. */
static void own_descriptors(int socket) {
    int null;
    do null = open("/dev/null", O_RDWR);
    while (null >= 0 && null < 3);
    if (socket != 3) dup2(socket, 3);
    fcntl(3, F_SETFD, FD_CLOEXEC);
    guard.socket = 3;
    if (syscall(SYS_close_range, 4, ~0u, 0))
        for (int fd = 4; fd < 65536; fd++) close(fd);
}

static bool pidfd_getfd_works(void) {
    int process = (int)syscall(SYS_pidfd_open, getpid(), 0);
    int fd = process < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, process, 0, 0);
    if (fd >= 0) close(fd);
    if (process >= 0) close(process);
    return fd >= 0;
}

static void hello(void) {
    int route = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    if (route < 0) fatal("netlink socket", errno);
    guard.landlock = landlock_abi();
    guard.pidfd_getfd = pidfd_getfd_works();
    message_begin(HELLO, 0, 0);
    put_u32(PROTOCOL);
    put_u32((uint32_t)guard.landlock);
    put_u32((guard.pidfd_getfd ? FEATURE_PIDFD_GETFD : 0) | (getpid() == 1 ? FEATURE_PID_1 : 0));
#ifdef __x86_64__
    put_text("x86_64");
#else
    put_text("aarch64");
#endif
    message_send(route);
    close(route);
}

static void set_up(struct setup *given) {
    guard.setup = *given;
    memset(given, 0, sizeof *given); /* ours now, for good */
    bool optional = guard.setup.flags & SETUP_NO_LANDLOCK_OK;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) fatal("no_new_privs", errno);
    for (int c = 0; c < 64; c++) prctl(PR_CAPBSET_DROP, c, 0, 0, 0); /* needs CAP_SETPCAP; engines drop it too */
    if (!guard.landlock && !optional) fatal("landlock", ENOSYS);
    int error = guard.landlock ? landlock_confine(&guard.setup.rules, guard.landlock) : 0;
    if (error) fatal("landlock", -error);
    /* After the confinement: Landlock lets a domain's processes connect to abstract sockets of their own domain only. */
    if (guard.setup.flags & SETUP_CALLS && (error = calls_listen())) fatal("calls", -error);
    if ((error = ports_listen(guard.setup.ports, guard.setup.port_count))) fatal("port", -error);
    filter_build(guard.setup.flags & SETUP_FILES);
    int views[MAX_VIEWS];
    uint32_t count = guard.setup.views.n;
    for (uint32_t i = 0; i < count; i++) {
        views[i] = open(guard.setup.views.v[i], O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (views[i] < 0) fatal("view", errno);
    }
    message_begin(READY, 0, 0);
    selftest_run();
    message_send_with(views, count);
    for (uint32_t i = 0; i < count; i++) close(views[i]);
    guard.ready = true;
}

static void answer(uint32_t id, const struct answer *a) {
    struct task *t = request_find(id);
    if (!t) { /* it died, or the time was over: who is still at it has to know, so that nobody is asked for nothing */
        if (!(a->flags & ANSWER_WAIT)) return;
        message_begin(WITHDRAWN, 0, id);
        message_send(-1);
        return;
    }
    if (a->flags & ANSWER_WAIT) request_restart(t);
    else gate_answer(t, a);
}

static void obey(struct message *m, int descriptors[3], int count) {
    int expected = m->type == SPAWN && !m->flags ? 3 : 0;
    /* INVARIANT: SETUP comes once and first; nonsense ends everything
     * (test_nonsense_from_the_broker_ends_the_guard). */
    if ((m->type == SETUP) == guard.ready || count != expected) guard_exit(70);
    switch (m->type) {
    case SETUP: set_up(&m->setup); break;
    case SPAWN:
        if (spawn_find(m->id) || m->spawn.flags == (SPAWN_TERMINAL | SPAWN_NO_DESCRIPTORS)) guard_exit(70);
        spawn_start(m->id, &m->spawn, descriptors);
        break;
    case ANSWER: answer(m->id, &m->answer); break;
    case SIGNAL: process_signal(m->id, (int)m->signal, m->flags & 1); break;
    case KILL: process_kill(m->id); break;
    case REPLY: calls_reply(m->id, m->reply, m->reply_size); break;
    case CALL_NEXT: calls_next(m->id); break;
    case HANG_UP: calls_hang_up(m->id); break;
    case SHUTDOWN: gate_statistics(); guard_exit(0);
    }
}

struct arrival {
    struct arrival *next;
    size_t size;
    int descriptors[3], count;
    uint8_t packet[];
};
/* What came while the guard waited to send, oldest first. Beyond the limit the broker waits as for a full socket; it is
 * four times what the replies to all calls may have. */
static struct arrival *kept, **kept_end = &kept;
static size_t kept_bytes;
enum { KEPT_AT_MOST = 4 * 1024 * 1024 };

static struct arrival *take(void) {
    static uint8_t packet[MAX_PACKET + 1];
    struct iovec part = {packet, sizeof packet};
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(3 * sizeof(int))];
    } control;
    struct msghdr h = {.msg_iov = &part, .msg_iovlen = 1};
    h.msg_control = control.room;
    h.msg_controllen = sizeof control.room;
    ssize_t n = recvmsg(guard.socket, &h, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return NULL;
    if (n <= 0) guard_exit(0); /* the broker is gone */
    if (h.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) guard_exit(70);
    struct arrival *a = must_alloc(sizeof *a + (size_t)n);
    a->size = (size_t)n;
    memcpy(a->packet, packet, a->size);
    struct cmsghdr *c = CMSG_FIRSTHDR(&h);
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
        a->count = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(a->descriptors, CMSG_DATA(c), (size_t)a->count * sizeof(int));
    }
    return a;
}

void link_wait(void) {
    short wanted = kept_bytes < KEPT_AT_MOST ? POLLIN | POLLOUT : POLLOUT;
    struct pollfd on = {.fd = guard.socket, .events = wanted};
    if (poll(&on, 1, -1) < 0 && errno != EINTR) guard_exit(71);
    struct arrival *a = on.revents & POLLIN ? take() : NULL;
    if (!a) return;
    *kept_end = a;
    kept_end = &a->next;
    kept_bytes += sizeof *a + a->size;
}

static void receive(void) {
    struct arrival *a = kept;
    if (a) {
        kept = a->next;
        if (!kept) kept_end = &kept;
        kept_bytes -= sizeof *a + a->size;
    } else if (!(a = take())) return;
    struct message m;
    if (!message_parse(a->packet, a->size, &m)) guard_exit(70);
    obey(&m, a->descriptors, a->count);
    message_free(&m);
    for (int i = 0; i < a->count; i++) close(a->descriptors[i]);
    free(a);
}

/* Take what wait4 has. True: there may be more. */
static bool reap(void) {
    for (int i = 0; i < EVENTS_AT_ONCE; i++) {
        int status;
        struct rusage usage;
        pid_t tid = wait4(-1, &status, WNOHANG | __WALL, &usage);
        if (tid <= 0) return false;
        process_event(tid, status, &usage);
    }
    return true;
}

static void on_signals(int fd) {
    struct signalfd_siginfo s[2]; /* standard signals do not queue: at most one of each */
    ssize_t n = read(fd, s, sizeof s);
    for (size_t i = 0; n > 0 && i < (size_t)n / sizeof *s; i++)
        /* From outside the pid namespace the sender's number is 0; SI_USER cannot be forged from inside. */
        if (s[i].ssi_signo == SIGTERM && s[i].ssi_code == SI_USER && !s[i].ssi_pid) guard_exit(0);
}

static void __attribute__((noreturn)) loop(int signals) {
    struct pollfd on[CALLS_POLLED + MAX_PORTS] = {{.fd = guard.socket, .events = POLLIN}, {.fd = signals, .events = POLLIN}};
    bool more = false;
    for (;;) {
        uint64_t next = process_next_deadline(), now = next ? now_ms() : 0;
        uint64_t left = next > now ? next - now : 0;
        int timeout = more || kept ? 0 : !next ? -1 : left > 60000 ? 60000 : (int)left;
        unsigned calls = calls_watch(on), ports = ports_watch(on + calls);
        if (poll(on, calls + ports, timeout) < 0 && errno != EINTR) guard_exit(71);
        if (on[1].revents) on_signals(signals);
        if (on[1].revents || more) more = reap();
        if (kept || on[0].revents & ~POLLOUT) receive();
        if (next) process_expire();
        calls_step(on, calls); /* last: nobody's answer waits for a call */
        ports_step(on + calls);
    }
}

#ifdef __SANITIZE_ADDRESS__
/* Process 1 is deaf to signals that it has no handler for; the sanitizer's handlers would make a workload's SIGSEGV
 * reach it. And a leak check at the end wants ptrace, which the guard's own children have taken. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) {
    return "detect_leaks=0:handle_segv=0:handle_sigbus=0:handle_sigfpe=0:handle_sigill=0:handle_abort=0:handle_sigtrap=0";
}
#endif

int main(int argc, char **argv) {
    if (argc && !strcmp(basename(argv[0]), "broker")) return client_main(argc, argv);
    int socket = -1, error;
    const char *step;
    sigset_t ours;
    if (argc >= 3 && !strcmp(argv[1], "--fd")) socket = atoi(argv[2]);
    else if (argc >= 3 && !strcmp(argv[1], "--connect")) socket = connect_to(argv[2]);
    if (socket < 0 || fcntl(socket, F_GETFD) < 0) {
        fprintf(stderr, "guard: no broker. Usage: guard --fd NUMBER [MOUNTS…] | guard --connect SOCKET [MOUNTS…]\n");
        return USAGE;
    }
    own_descriptors(socket);
    int used = mounts_make(argc - 3, argv + 3, &step, &error);
    if (error) fatal(step, -error);
    if (used != argc - 3) return USAGE;
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    umask(022);
    signal(SIGCHLD, SIG_DFL); /* an inherited SIG_IGN would reap for us */
    sigemptyset(&ours);
    sigaddset(&ours, SIGCHLD);
    sigaddset(&ours, SIGTERM);
    sigprocmask(SIG_SETMASK, &ours, NULL);
    int signals = signalfd(-1, &ours, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals < 0) return 71;
    hello();
    loop(signals);
}
