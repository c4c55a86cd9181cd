/* The table of traced tasks (threads included), their ancestry, and what each ptrace stop means.
 *
 * In: statuses from wait4. Out: calls into the gate and the labels, EXITED, STOPPED, CONTINUED, IDLE.
 *
 * INVARIANT: a task runs user code only when its spawn and scope are known. They come from the fork event of
 * the very task that called fork or clone, never from its parent id, which CLONE_PARENT can bend
 * (test_a_child_given_to_the_grandparent …). */
#include "guard.h"

#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

enum { BUCKETS = 1024, LOST = 256, LOST_MS = 2000, HELD_MS = 5000 };

static struct task *table[BUCKETS];
static struct spawn *spawns;
static struct task *waiting_first, *waiting_last; /* oldest question first; all have one time limit */
static uint32_t next_request, held;
/* Tasks that died before their parent's fork event came: the event must not bring them back. Remembered for a
 * short time only, because numbers are used again. */
static struct {
    pid_t tid;
    uint64_t at;
} lost[LOST];
static unsigned next_lost;

uint64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static struct task **slot(pid_t tid) {
    struct task **t = &table[(unsigned)tid % BUCKETS];
    while (*t && (*t)->tid != tid) t = &(*t)->next;
    return t;
}

struct task *task_find(pid_t tid) { return *slot(tid); }

struct task *task_new(pid_t tid, struct spawn *spawn, uint32_t scope) {
    struct task **where = slot(tid), *t = must_alloc(sizeof *t);
    t->tid = tid;
    t->spawn = spawn;
    t->scope = scope;
    *where = t;
    guard.live++;
    if (spawn) spawn->live++;
    return t;
}

uint32_t task_spawn_id(const struct task *t) { return t->spawn ? t->spawn->id : 0; }

/* A number from /proc/TID/status. */
static long status_field(pid_t tid, const char *name) {
    char path[32], text[4096];
    snprintf(path, sizeof path, "/proc/%d/status", tid);
    ssize_t n = read_file(path, text, sizeof text - 1);
    if (n < 0) return -1;
    text[n] = 0;
    const char *found = strstr(text, name);
    return found ? strtol(found + strlen(name), NULL, 10) : -1;
}

pid_t task_tgid(struct task *t) {
    if (!t->tgid) {
        long tgid = status_field(t->tid, "\nTgid:");
        t->tgid = tgid > 0 ? (pid_t)tgid : t->tid;
    }
    return t->tgid;
}

struct spawn *spawn_find(uint32_t id) {
    struct spawn *s = spawns;
    while (s && s->id != id) s = s->next;
    return s;
}

struct spawn *spawn_new(uint32_t id, pid_t pid, int report, int master) {
    struct spawn *s = must_alloc(sizeof *s);
    *s = (struct spawn){.next = spawns, .id = id, .pid = pid, .report = report, .master = master};
    return spawns = s;
}

static void spawn_drop_if_empty(struct spawn *s) {
    if (!s->gone || s->live) return;
    struct spawn **where = &spawns;
    while (*where != s) where = &(*where)->next;
    *where = s->next;
    if (s->report >= 0) close(s->report);
    if (s->master >= 0) close(s->master);
    free(s);
}

static void task_free(struct task *t) {
    struct spawn *s = t->spawn;
    request_drop(t);
    gate_forget(t);
    *slot(t->tid) = t->next;
    if (t->held) held--;
    free(t);
    guard.live--;
    if (s) {
        s->live--;
        spawn_drop_if_empty(s);
    }
    if (!guard.live && guard.ready) {
        message_begin(IDLE, 0, 0);
        put_u32(0);
        message_send(-1);
    }
}

/* Questions under way */

uint32_t request_new(struct task *t) {
    do t->request = ++next_request;
    while (!t->request);
    t->wait_next = t->wait_prev = NULL;
    t->deadline = now_ms() + guard.setup.timeout_ms;
    t->wait_prev = waiting_last;
    if (waiting_last) waiting_last->wait_next = t;
    else waiting_first = t;
    waiting_last = t;
    return t->request;
}

void request_drop(struct task *t) {
    if (!t->request) return;
    if (t->wait_prev) t->wait_prev->wait_next = t->wait_next;
    else waiting_first = t->wait_next;
    if (t->wait_next) t->wait_next->wait_prev = t->wait_prev;
    else waiting_last = t->wait_prev;
    t->request = 0;
}

void request_restart(struct task *t) {
    uint32_t id = t->request;
    request_drop(t);
    request_new(t);
    t->request = id;
}

struct task *request_find(uint32_t id) {
    struct task *t = waiting_first;
    while (t && t->request != id) t = t->wait_next;
    return t;
}

/* Birth */

static void remember_lost(pid_t tid) {
    lost[next_lost].tid = tid;
    lost[next_lost].at = now_ms();
    next_lost = (next_lost + 1) % LOST;
}

static bool was_lost(pid_t tid) {
    for (unsigned i = 0; i < LOST; i++) {
        if (lost[i].tid != tid) continue;
        lost[i].tid = 0;
        if (now_ms() - lost[i].at < LOST_MS) return true;
    }
    return false;
}

static void on_stop(struct task *t, int status);

/* INVARIANT: no more than the limit of tasks runs at once (test_no_more_tasks_than_the_limit_live_at_once). */
static bool over_limit(struct task *t) {
    static uint64_t last_note;
    uint32_t limit = guard.setup.live_limit;
    if (!limit || guard.live <= limit) return false;
    if (now_ms() - last_note >= 1000) { /* a fork bomb must not flood the journal */
        last_note = now_ms();
        note(NOTE_TASKS_LIMIT, (uint32_t)t->tid, task_spawn_id(t), "more than %u processes and threads", limit);
    }
    return true;
}

static void adopt(struct task *child, struct task *parent) {
    /* By the clone flags, not by the event: a thread may be born with fork's or vfork's. */
    child->tgid = tracee_makes_thread(parent->tid) ? task_tgid(parent) : child->tid;
    struct task *leader = child->tgid == child->tid ? NULL : *slot(child->tgid);
    if (leader) leader->has_threads = true;
}

static void on_fork(struct task *parent) {
    unsigned long message;
    if (ptrace(PTRACE_GETEVENTMSG, parent->tid, 0, &message)) return; /* killed; its child is held, and expires */
    pid_t tid = (pid_t)message;
    struct task *child = *slot(tid);
    bool waits = child && child->held;
    if (!child && !was_lost(tid)) {
        child = task_new(tid, parent->spawn, parent->scope);
    } else if (waits) {
        child->held = false;
        held--;
        child->scope = parent->scope;
        child->spawn = parent->spawn;
        if (child->spawn) child->spawn->live++;
    } else {
        child = NULL;
    }
    if (child) {
        adopt(child, parent);
        if (over_limit(child) || (child->spawn && child->spawn->doomed)) kill(tid, SIGKILL);
        else if (waits) on_stop(child, child->held_status);
    }
    tracee_resume(parent->tid, 0);
}

/* Stops */

/* Ctrl-Z on a spawn's own process group: the kernel discards SIGTSTP there, because the group's parent, this
 * guard, is in another session ("orphaned"). What a shell outside would see is a stop, so make it one. */
static int deliverable(struct task *t, int signal) {
    if (signal != SIGTSTP || !t->spawn || t->spawn->gone || getpgid(t->tid) != t->spawn->pid) return signal;
    char path[32], text[4096];
    snprintf(path, sizeof path, "/proc/%d/status", t->tid);
    ssize_t n = read_file(path, text, sizeof text - 1);
    if (n < 0) return signal;
    text[n] = 0;
    const char *ignored = strstr(text, "\nSigIgn:"), *caught = strstr(text, "\nSigCgt:");
    if (!ignored || !caught) return signal;
    uint64_t taken = strtoull(ignored + 8, NULL, 16) | strtoull(caught + 8, NULL, 16);
    return taken >> (SIGTSTP - 1) & 1 ? signal : SIGSTOP;
}

static void tell_spawn(struct spawn *s, uint16_t type, int signal) {
    message_begin(type, 0, s->id);
    if (type == STOPPED) put_u32((uint32_t)signal);
    message_send(-1);
}

static void on_group_stop(struct task *t, int signal) {
    bool main_process = t->spawn && !t->spawn->gone && t->tid == t->spawn->pid;
    if (signal == SIGSTOP || signal == SIGTSTP || signal == SIGTTIN || signal == SIGTTOU) {
        if (main_process && t->spawn->started && !t->spawn->stopped) {
            t->spawn->stopped = true;
            tell_spawn(t->spawn, STOPPED, signal);
        }
        ptrace(PTRACE_LISTEN, t->tid, 0, 0); /* stays stopped until SIGCONT, and then reports again */
        return;
    }
    if (main_process && t->spawn->stopped) {
        t->spawn->stopped = false;
        tell_spawn(t->spawn, CONTINUED, 0);
    }
    tracee_resume(t->tid, 0);
}

static void on_call(struct task *t) {
    uint64_t nr, args[6];
    /* By the call's number, not by the filter's data: a filter of the workload's own that answers RET_TRACE
     * replaces our data with its own (test_a_filter_of_the_workload_cannot_get_an_exec_past_the_gate). */
    if (!tracee_syscall(t->tid, &nr, args)) return tracee_refuse(t->tid, ENOSYS);
    if (nr == SYS_execve || nr == SYS_execveat) return gate_exec(t, nr, args);
    if (guard.setup.flags & SETUP_FILES && files_is_change(nr)) return files_change(t, nr, args);
    if (egress_is_attempt(nr)) return egress_attempt(t, nr, args);
    tracee_refuse(t->tid, ENOSYS); /* what the call would return without a tracer */
}

/* A thread that is not the leader execs: it takes the leader's number, and with it the leader's place. */
static struct task *on_exec_number(struct task *t) {
    unsigned long message;
    if (ptrace(PTRACE_GETEVENTMSG, t->tid, 0, &message)) return t;
    struct task *former = (pid_t)message == t->tid ? NULL : *slot((pid_t)message);
    if (!former) return t;
    request_drop(t);
    gate_forget(t);
    t->scope = former->scope;
    t->approval = former->approval;
    t->approved = former->approved;
    former->approval = NULL;
    task_free(former);
    return t;
}

static void on_stop(struct task *t, int status) {
    int signal = WSTOPSIG(status);
    switch (status >> 16) {
    case 0: tracee_resume(t->tid, deliverable(t, signal)); break;
    case PTRACE_EVENT_STOP: on_group_stop(t, signal); break;
    case PTRACE_EVENT_FORK: case PTRACE_EVENT_VFORK: case PTRACE_EVENT_CLONE: on_fork(t); break;
    case PTRACE_EVENT_EXEC: calls_settle(); gate_execed(on_exec_number(t)); break;
    case PTRACE_EVENT_SECCOMP: on_call(t); break;
    default: tracee_resume(t->tid, 0);
    }
}

/* A leader's end is reported after all its threads have been reaped. What the table still has of them is a thread
 * that took the leader's number in an exec and was killed before its exec stop: nobody reports its old number. */
static void forget_threads(pid_t tgid) {
    for (unsigned b = 0; b < BUCKETS; b++)
        for (struct task *t = table[b], *next; t; t = next) {
            next = t->next;
            if (t->tgid == tgid && t->tid != tgid) task_free(t);
        }
}

static void on_exit_of(struct task *t, int status, const struct rusage *usage) {
    struct spawn *s = t->spawn;
    if (t->tgid == t->tid) calls_settle();
    if (t->held) remember_lost(t->tid);
    if (t->has_threads) forget_threads(t->tid);
    if (s && !s->gone && s->pid == t->tid) {
        spawn_ended(s, status, usage);
        s->gone = true;
    }
    task_free(t);
}

static bool parent_is_doomed(pid_t tid) {
    long parent = status_field(tid, "\nPPid:");
    struct task *p = parent > 1 ? *slot((pid_t)parent) : NULL;
    return p && p->spawn && p->spawn->doomed;
}

void process_event(pid_t tid, int status, const struct rusage *usage) {
    struct task *t = *slot(tid);
    if (WIFEXITED(status) || WIFSIGNALED(status)) {
        if (t) on_exit_of(t, status, usage);
        else remember_lost(tid);
        return;
    }
    if (!WIFSTOPPED(status)) return;
    if (t && !t->held) return on_stop(t, status);
    if (!t) {
        t = task_new(tid, NULL, 0);
        t->held = true;
        t->held_since = now_ms();
        held++;
    }
    t->held_status = status;
    if (parent_is_doomed(tid)) kill(tid, SIGKILL);
}

/* From the broker */

static long foreground_group(pid_t pid) {
    char path[32], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    ssize_t n = read_file(path, text, sizeof text - 1);
    if (n < 0) return -1;
    text[n] = 0;
    const char *rest = strrchr(text, ')'); /* the name may hold anything */
    long group = -1;
    if (!rest || sscanf(rest + 1, " %*c %*d %*d %*d %*d %ld", &group) != 1) return -1;
    return group;
}

void process_signal(uint32_t id, int signal, bool group) {
    if (!id) {
        for (unsigned b = 0; b < BUCKETS; b++)
            for (struct task *t = table[b]; t; t = t->next)
                if (task_tgid(t) == t->tid) kill(t->tid, signal);
        return;
    }
    struct spawn *s = spawn_find(id);
    if (!s || s->gone) return; /* while it is not gone, its number cannot be anybody else's */
    if (!group || !s->started) {
        kill(s->pid, signal);
        return;
    }
    long foreground = foreground_group(s->pid);
    kill(foreground > 0 ? (pid_t)-foreground : -s->pid, signal);
}

/* INVARIANT: nothing of the spawn is left, daemons in other sessions included: what is born meanwhile inherits
 * the spawn and is killed at birth (test_kill_ends_daemons_in_other_sessions …, test_kill_while_a_tree_forks …). */
void process_kill(uint32_t id) {
    struct spawn *s = spawn_find(id);
    if (!s) return;
    s->doomed = true;
    for (unsigned b = 0; b < BUCKETS; b++)
        for (struct task *t = table[b]; t; t = t->next)
            if (t->spawn == s || (t->held && parent_is_doomed(t->tid))) kill(t->tid, SIGKILL);
}

/* Time */

uint64_t process_next_deadline(void) {
    uint64_t next = waiting_first ? waiting_first->deadline : 0;
    if (held && (!next || next > now_ms() + HELD_MS)) next = now_ms() + HELD_MS;
    return next;
}

void process_expire(void) {
    uint64_t now = now_ms();
    while (waiting_first && waiting_first->deadline <= now) {
        struct task *t = waiting_first;
        struct answer deny = {.scope = SCOPE_UNCHANGED, .error = EACCES, .note = (char *)""};
        note(NOTE_ANSWER_TIMEOUT, (uint32_t)t->tid, task_spawn_id(t), "no answer to request %u within %u ms",
             t->request, guard.setup.timeout_ms);
        gate_answer(t, &deny);
    }
    /* A parent that is killed inside fork never reports its child, and without ancestry it may not run. */
    for (unsigned b = 0; held && b < BUCKETS; b++)
        for (struct task *t = table[b]; t; t = t->next)
            if (t->held && now - t->held_since >= HELD_MS) kill(t->tid, SIGKILL);
}
