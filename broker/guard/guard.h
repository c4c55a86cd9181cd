/* The guard: process 1 in the sandbox. PROTOCOL.md says what it promises; this header says who does what.
 *
 *   main.c      starts, reads the broker's messages, runs the one loop
 *   message.c   packets: strict reading, writing
 *   process.c   the table of traced tasks, spawns and ancestry; ptrace stops; exits
 *   spawn.c     from SPAWN to the first exec
 *   gate.c      the exec gate: check before, check after, cache
 *   shebang.c   what the kernel makes of a script's first line
 *   files.c     labels for changes to paths
 *   path.c      resolves a traced process's paths, as that process would
 *   tracee.c    reads a traced process's memory and refuses its calls
 *   calls.c     calls from inside: carries packets between a client and the broker, and judges nothing
 *   ports.c     ports on the sandbox's loopback: whoever connects is handed to the broker
 *   egress.c    labels for connections that have no way out
 *   client.c    the client itself: this same program, started as `broker`
 *   client_file.c  its verbs `file read` and `file write`, which need no call
 *   mounts.c    the copy-on-write workspace, for the engine that cannot make it
 *   filter.c    the seccomp filter       landlock.c  the file system rules      selftest.c  proves them
 *
 * One thread, no allocation while a verdict is being enforced that could change it: when memory runs out
 * the guard exits, and the kernel kills the tree (PTRACE_O_EXITKILL). */
#ifndef GUARD_H
#define GUARD_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum {
    PROTOCOL = 3,
    MAX_PACKET = 192 * 1024,
    MAX_WORDS = 160 * 1024,     /* argv and the watched environment together; more is E2BIG */
    MAX_ENV = 1024 * 1024,      /* the whole environment */
    MAX_PATH_TEXT = 2 * PATH_MAX,
    MAX_SHEBANG = 256,          /* BINPRM_BUF_SIZE */
    MAX_SHEBANG_DEPTH = 5,
    MAX_VIEWS = 8,
    MAX_PORTS = 16,
    MAX_CALL_PACKET = 64 * 1024,
};
#define SCOPE_UNCHANGED 0xffffffffu

enum { FEATURE_PIDFD_GETFD = 1, FEATURE_PID_1 = 2 };
enum { SETUP_FILES = 1, SETUP_SELFTEST = 2, SETUP_NO_LANDLOCK_OK = 4, SETUP_ALLOW_EXEC = 8, SETUP_CALLS = 16 };
enum { SPAWN_TERMINAL = 1, SPAWN_NO_DESCRIPTORS = 2 };
enum { ANSWER_CACHE = 1, ANSWER_WAIT = 2 };

enum guard_message {
    HELLO = 1, READY, SPAWNED, SPAWN_FAILED, EXEC, FILE_CHANGE, EXITED, STOPPED, CONTINUED, NOTE, IDLE,
    FATAL, EXECUTED, CALL, CALL_DATA, CALL_TAKEN, CALL_GONE, CONNECTED, WITHDRAWN,
};
enum broker_message { SETUP = 64, SPAWN, ANSWER, SIGNAL, KILL, SHUTDOWN, REPLY, CALL_NEXT, HANG_UP };
enum note {
    NOTE_EXEC_RACE = 1, NOTE_EXEC_UNREADABLE, NOTE_EXEC_TOO_LARGE, NOTE_TASKS_LIMIT, NOTE_ANSWER_TIMEOUT,
    NOTE_CACHE, NOTE_PATH_UNREADABLE, NOTE_INTERNAL, NOTE_NET_REFUSED,
};

/* message.c */
struct strings {
    uint32_t n;
    char **v; /* NULL after the last */
};
struct setup {
    uint32_t flags, timeout_ms, live_limit, nofile, nproc;
    uint64_t file_size;
    struct strings rules; /* rights, path, rights, path … */
    struct strings roots, quiet, names, env, views;
    char *test_exec, *test_write;
    uint16_t ports[MAX_PORTS];
    uint32_t port_count;
};
struct spawn_request {
    uint32_t flags, scope, rows, columns;
    char *cwd;
    struct strings argv, env;
};
struct answer {
    uint32_t flags, verdict, scope, error;
    char *note;
};
struct message {
    uint16_t type, flags;
    uint32_t id, signal;
    struct setup setup;
    struct spawn_request spawn;
    struct answer answer;
    const uint8_t *reply; /* within the packet */
    uint32_t reply_size;
};
bool message_parse(const uint8_t *packet, size_t size, struct message *m); /* false: damaged; nothing to free */
void message_free(struct message *m);
void *must_alloc(size_t size);
void message_begin(uint16_t type, uint16_t flags, uint32_t id);
void put_u32(uint32_t value);
void put_u64(uint64_t value);
void put_blob(const void *bytes, size_t size);
void put_text(const char *text);
void message_send(int descriptor); /* -1: none */
void message_send_with(const int *descriptors, unsigned count);
bool message_offer(int descriptor); /* false: the kernel lets no more descriptors be under way */
extern bool link_full;              /* found when last looked */
bool link_has_room(void);           /* whether a packet for the broker would be taken at once */
void note(enum note kind, uint32_t pid, uint32_t spawn, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* process.c */
struct spawn {
    struct spawn *next;
    uint32_t id, live;
    pid_t pid;
    int report, master; /* -1: none. `report` is open until the first exec has succeeded or failed */
    bool started, gone, doomed, stopped;
};
struct approval;
struct task {
    struct task *next;
    pid_t tid, tgid; /* tgid 0: not looked up yet */
    struct spawn *spawn;
    uint32_t scope;
    bool has_threads; /* has had */
    bool held; /* stopped at birth: its parent's fork event has not come yet */
    int held_status;
    uint64_t held_since;
    uint32_t request; /* 0: nothing asked */
    uint64_t deadline;
    struct task *wait_next, *wait_prev;
    struct approval *approval; /* what the exec that is under way may turn into; NULL: nothing */
    bool approved;
};
struct task *task_find(pid_t tid);
struct task *task_new(pid_t tid, struct spawn *spawn, uint32_t scope);
pid_t task_tgid(struct task *t);
uint32_t task_spawn_id(const struct task *t);
struct spawn *spawn_find(uint32_t id);
struct spawn *spawn_new(uint32_t id, pid_t pid, int report, int master);
void process_event(pid_t tid, int status, const struct rusage *usage);
void process_signal(uint32_t id, int signal, bool group);
void process_kill(uint32_t id);
void process_expire(void);
uint64_t process_next_deadline(void); /* 0: none */
uint32_t request_new(struct task *t);
void request_restart(struct task *t);
void request_drop(struct task *t);
struct task *request_find(uint32_t id);
uint64_t now_ms(void);

/* spawn.c */
void spawn_start(uint32_t id, const struct spawn_request *r, int descriptors[3]);
void spawn_started(struct spawn *s);
void spawn_ended(struct spawn *s, int status, const struct rusage *usage);

/* tracee.c */
struct window {
    uint64_t at;
    size_t n;
    char bytes[4096];
};
struct memory {
    int fd;
    struct window words, pointers;
};
int memory_open(struct memory *m, pid_t tid); /* 0 or -errno */
void memory_close(struct memory *m);
ssize_t memory_string(struct memory *m, uint64_t at, char *out, size_t size); /* length, or -errno */
int memory_words(struct memory *m, uint64_t at, char *out, size_t size, size_t *used, uint32_t *count);
bool tracee_syscall(pid_t tid, uint64_t *nr, uint64_t args[6]);
bool tracee_makes_thread(pid_t tid); /* at its fork, vfork or clone event */
void tracee_refuse(pid_t tid, int error);
void tracee_resume(pid_t tid, int signal);
void tracee_tell(pid_t tid, const char *text);
ssize_t read_file(const char *path, char *out, size_t size); /* bytes, or -errno; -E2BIG: more than size */

/* path.c */
int path_open(struct task *t, int dirfd, const char *path, bool follow);
int path_text(int fd, char out[MAX_PATH_TEXT]);
int path_locate(struct task *t, int dirfd, const char *path, bool follow, char out[MAX_PATH_TEXT],
                struct stat *st); /* 0; -ENOENT: may be created; else -errno: the call itself will fail */
bool path_below(const char *path, const char *root);
bool name_matches(const char *name, size_t n, const char *pattern);
bool path_watched(const char *path, const struct strings *roots, const struct strings *quiet,
                  const struct strings *names);

/* shebang.c */
struct shebang {
    char name[MAX_SHEBANG], argument[MAX_SHEBANG], line[MAX_SHEBANG];
    bool has_argument;
};
bool shebang_parse(const char head[MAX_SHEBANG], struct shebang *s);

/* gate.c */
void gate_exec(struct task *t, uint64_t nr, const uint64_t args[6]);
void gate_execed(struct task *t);
void gate_answer(struct task *t, const struct answer *a);
void gate_forget(struct task *t);
void gate_statistics(void);

/* files.c */
bool files_is_change(uint64_t nr);
void files_change(struct task *t, uint64_t nr, const uint64_t args[6]);
unsigned files_syscalls(unsigned *numbers, unsigned size);

/* calls.c */
enum { CALLS_POLLED = 51 }; /* the link, the signals, the listener and every connection */
int calls_listen(void); /* 0 or -errno */
unsigned calls_watch(struct pollfd on[CALLS_POLLED]);
void calls_step(const struct pollfd on[CALLS_POLLED], unsigned count);
void calls_settle(void);
void calls_connected(int fd);
void calls_reply(uint32_t id, const uint8_t *data, size_t size);
void calls_next(uint32_t id);
void calls_hang_up(uint32_t id);

/* ports.c */
int ports_listen(const uint16_t *ports, uint32_t count); /* 0 or -errno */
unsigned ports_watch(struct pollfd on[MAX_PORTS]);
void ports_step(const struct pollfd on[MAX_PORTS]);

/* egress.c */
bool egress_is_attempt(uint64_t nr);
void egress_attempt(struct task *t, uint64_t nr, const uint64_t args[6]);
struct destination {
    char text[64]; /* ADDRESS:PORT */
    bool outside;
};
bool destination_read(const uint8_t *address, size_t size, struct destination *d); /* false: no internet address */

/* client.c, client_file.c */
int client_main(int argc, char **argv);
int client_says(int code, const char *about, const char *reason); /* one line on standard error; returns the code */
int client_file(char **words);
bool write_all(int fd, const void *bytes, size_t size);

/* mounts.c */
int mounts_make(int argc, char **argv, const char **step, int *error); /* how many arguments it has used */

/* filter.c, landlock.c, selftest.c */
void filter_build(bool files);
int filter_install(void); /* 0 or -errno */
int landlock_abi(void);
int landlock_confine(const struct strings *rules, int abi); /* 0 or -errno */
void selftest_run(void); /* writes the list of proofs into the message under way */

struct guard {
    int socket;
    int landlock; /* effective ABI, 0: none */
    bool ready, pidfd_getfd;
    struct setup setup;
    uint32_t live;
};
extern struct guard guard;
__attribute__((noreturn)) void guard_exit(int code);
void link_wait(void); /* main.c: until the broker's socket may take more, or something came from it */

#endif
