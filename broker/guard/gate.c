/* The exec gate: one check before the call, one after it.
 *
 * Before (PTRACE_EVENT_SECCOMP): what the call names is read, and the broker asked. This gives a clean error,
 * but argv lies in memory that a thread, a CLONE_VM peer or a shared mapping can change until the kernel has
 * copied it. After (PTRACE_EVENT_EXEC): the kernel has copied it into a new, single-threaded image that has run
 * nothing. What that image really is gets compared with what was approved.
 *
 * INVARIANT: no instruction of an image runs that was not approved as it is (test_guard_race). A task has an approval
 * only between an allowed question and the next exec stop or question; an exec stop without one is a kill. */
#include "guard.h"

#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>

enum { SLOTS = 512, MAX_KEY = 8192, EXPANSION = MAX_SHEBANG_DEPTH * 2 * MAX_SHEBANG + PATH_MAX + 64 };

struct approval {
    dev_t dev;
    ino_t ino; /* of the file that will really run: a script's interpreter */
    uint32_t request, scope;
    size_t argv_size, env_size, key_size;
    char *key;    /* for the cache; NULL: too large */
    char bytes[]; /* argv, environment */
};

static const char TOO_LARGE[] = "argv and environment are too large to be judged";

/* A question, read from the tracee. */
static struct question {
    int dirfd, flags;
    struct stat program, image;
    char named[PATH_MAX], path[MAX_PATH_TEXT], text[MAX_PATH_TEXT], cwd[MAX_PATH_TEXT];
    char shebang[MAX_SHEBANG];
    char expansion[EXPANSION]; /* what stands in place of argv[0] */
    size_t expansion_size, argv_size, env_size;
    uint32_t argc, envc;
    char words[MAX_WORDS], env[MAX_ENV];
} q;

/* The cache: answers that the broker allowed to be kept. Whole keys are compared; a slot is simply replaced. */
static struct entry {
    char *key;
    size_t size;
    uint32_t scope;
} cache[SLOTS];
static uint64_t hits, misses;

static struct entry *cache_slot(const char *key, size_t size) {
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (size_t i = 0; i < size; i++) hash = (hash ^ (unsigned char)key[i]) * 0x100000001b3u;
    return &cache[(hash ^ hash >> 32) % SLOTS];
}

static void cache_store(struct approval *a) {
    if (!a->key) return;
    struct entry *e = cache_slot(a->key, a->key_size);
    free(e->key);
    *e = (struct entry){.key = a->key, .size = a->key_size, .scope = a->scope};
    a->key = NULL;
}

static bool interesting(const char *variable) {
    size_t n = strcspn(variable, "=");
    for (uint32_t i = 0; i < guard.setup.env.n; i++) {
        const char *want = guard.setup.env.v[i];
        if (*want != *variable && *want != '*') continue; /* hundreds of names: nearly all end here */
        size_t m = strlen(want);
        bool prefix = m && want[m - 1] == '*';
        if (prefix) m--;
        if ((prefix ? n >= m : n == m) && !strncmp(variable, want, m)) return true;
    }
    return false;
}

/* The watched variables, or too much of them: more than `size`. */
static size_t interesting_env(char *out, size_t size) {
    size_t used = 0;
    const char *word = q.env;
    for (uint32_t i = 0; i < q.envc; i++) {
        size_t n = strlen(word) + 1;
        if (interesting(word)) {
            if (n > size - used) return size + 1;
            memcpy(out + used, word, n);
            used += n;
        }
        word += n;
    }
    return used;
}

struct key_head {
    struct {
        uint64_t dev, ino, size;
        struct timespec changed, modified;
    } program, image;
    uint64_t scope, path_size, cwd_size, argv_size, env_size;
};

static void identify(struct stat *st, __typeof__(((struct key_head *)0)->program) *out) {
    out->dev = st->st_dev;
    out->ino = st->st_ino;
    out->size = (uint64_t)st->st_size;
    out->changed = st->st_ctim;
    out->modified = st->st_mtim;
}

/* INVARIANT: a cached answer is used only for an identical question
 * (test_a_cached_answer_serves_identical_questions_only). */
static char *make_key(const struct task *t, const char *env, size_t env_size, size_t *size) {
    struct key_head head = {0};
    size_t path_size = strlen(q.path), cwd_size = strlen(q.cwd);
    *size = sizeof head + path_size + cwd_size + q.argv_size + env_size;
    if (*size > MAX_KEY) return NULL;
    identify(&q.program, &head.program);
    identify(&q.image, &head.image);
    head.scope = t->scope;
    head.path_size = path_size;
    head.cwd_size = cwd_size;
    head.argv_size = q.argv_size;
    head.env_size = env_size;
    char *key = must_alloc(*size), *at = key;
    memcpy(at, &head, sizeof head), at += sizeof head;
    memcpy(at, q.path, path_size), at += path_size;
    memcpy(at, q.cwd, cwd_size), at += cwd_size;
    memcpy(at, q.words, q.argv_size), at += q.argv_size;
    memcpy(at, env, env_size);
    return key;
}

/* Before */

enum outcome { ASK, LET_FAIL, REFUSE }; /* LET_FAIL: the kernel will give the error itself */

static enum outcome refuse(struct task *t, enum note kind, int error, const char *why) {
    note(kind, (uint32_t)task_tgid(t), task_spawn_id(t), "%s", why);
    tracee_refuse(t->tid, error);
    return REFUSE;
}

static enum outcome read_call(struct task *t, uint64_t nr, const uint64_t args[6]) {
    struct memory m;
    bool at = nr == SYS_execveat;
    const uint64_t *a = at ? args + 1 : args;
    q.dirfd = at ? (int)args[0] : AT_FDCWD;
    q.flags = at ? (int)args[4] : 0;
    if (memory_open(&m, t->tid))
        return refuse(t, NOTE_EXEC_UNREADABLE, EACCES, "the memory of the process cannot be opened");
    int error = (int)memory_string(&m, a[0], q.named, sizeof q.named);
    if (error >= 0) error = memory_words(&m, a[1], q.words, MAX_WORDS, &q.argv_size, &q.argc);
    else if (error == -E2BIG) error = -ENAMETOOLONG;
    if (error >= 0)
        error = memory_words(&m, a[2], q.env, MAX_ENV, &q.env_size, &q.envc);
    memory_close(&m);
    if (error == -ENAMETOOLONG) return LET_FAIL;
    if (error == -E2BIG) return refuse(t, NOTE_EXEC_TOO_LARGE, E2BIG, TOO_LARGE);
    if (error < 0) return refuse(t, NOTE_EXEC_UNREADABLE, EFAULT, "argv or environment cannot be read");
    return ASK;
}

/* Open a file that an exec names, and read its head. 0, or -errno: ENOENT and the like for LET_FAIL. */
static int look_at(struct task *t, int dirfd, const char *path, bool follow, struct stat *st,
                   char text[MAX_PATH_TEXT], char head[MAX_SHEBANG]) {
    char again[32];
    int fd = path_open(t, dirfd, path, follow), error = 0;
    if (fd < 0) return -ENOENT;
    if (fstat(fd, st) || !S_ISREG(st->st_mode) || !(st->st_mode & 0111)) {
        error = -ENOENT;
    } else if (text && path_text(fd, text)) {
        error = -EACCES;
    } else {
        /* O_NONBLOCK: a lease on the file must not stall the guard. */
        snprintf(again, sizeof again, "/proc/self/fd/%d", fd);
        int file = open(again, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
        memset(head, 0, MAX_SHEBANG);
        if (file < 0 || pread(file, head, MAX_SHEBANG, 0) < 0) error = -EACCES;
        if (file >= 0) close(file);
    }
    close(fd);
    return error;
}

static bool prepend_words(const struct shebang *s, const char *script) {
    char before[3 * MAX_SHEBANG + PATH_MAX + 64];
    size_t n = 0, size;
    const char *words[3] = {s->name, s->has_argument ? s->argument : NULL, script};
    for (int i = 0; i < 3; i++) {
        if (!words[i]) continue;
        size = strlen(words[i]) + 1;
        if (size > sizeof before - n) return false;
        memcpy(before + n, words[i], size);
        n += size;
    }
    if (n > sizeof q.expansion - q.expansion_size) return false;
    memmove(q.expansion + n, q.expansion, q.expansion_size);
    memcpy(q.expansion, before, n);
    q.expansion_size += n;
    return true;
}

/* The kernel's name for a script, which its interpreter gets (fs/exec.c, alloc_bprm). */
static void script_name(char out[PATH_MAX + 64]) {
    if (q.dirfd == AT_FDCWD || q.named[0] == '/') strcpy(out, q.named);
    else if (!q.named[0]) snprintf(out, PATH_MAX + 64, "/dev/fd/%d", q.dirfd);
    else snprintf(out, PATH_MAX + 64, "/dev/fd/%d/%s", q.dirfd, q.named);
}

/* Follow `#!` lines as the kernel will, to know which file ends up running and with which words. */
static int expand(struct task *t, char head[MAX_SHEBANG]) {
    char script[PATH_MAX + 64];
    struct shebang s;
    q.expansion_size = 0;
    q.shebang[0] = 0;
    q.image = q.program;
    script_name(script);
    for (int depth = 0; shebang_parse(head, &s); depth++) {
        if (depth == MAX_SHEBANG_DEPTH) return -ENOENT; /* the kernel says ELOOP */
        if (!depth) strcpy(q.shebang, s.line);
        /* After the first level the previous interpreter is already the first word. */
        if (!prepend_words(&s, depth ? NULL : script)) return -EACCES;
        int error = look_at(t, AT_FDCWD, s.name, true, &q.image, NULL, head);
        if (error) return error;
    }
    return 0;
}

/* The path as it was named, made absolute. */
static bool absolute_path(struct task *t) {
    char base[MAX_PATH_TEXT];
    snprintf(base, sizeof base, "/proc/%d/cwd", t->tid);
    ssize_t n = readlink(base, q.cwd, sizeof q.cwd - 1);
    if (n < 0) return false;
    q.cwd[n] = 0;
    const char *from = q.cwd;
    if (!q.named[0]) from = NULL;
    else if (q.named[0] == '/') from = "";
    else if (q.dirfd != AT_FDCWD) {
        int fd = path_open(t, q.dirfd, "", true);
        int error = fd < 0 ? fd : path_text(fd, base);
        if (fd >= 0) close(fd);
        if (error) return false;
        from = base;
    }
    int size;
    /* A script's interpreter will open it by this name, whatever the descriptor is by then. */
    if (q.expansion_size && q.dirfd != AT_FDCWD && q.named[0] != '/') {
        char script[PATH_MAX + 64];
        script_name(script);
        strcpy(q.path, script);
        return true;
    }
    if (!from) size = snprintf(q.path, sizeof q.path, "%s", q.text);
    else size = snprintf(q.path, sizeof q.path, "%s%s%s", from, *from ? "/" : "", q.named);
    return size >= 0 && (size_t)size < sizeof q.path;
}

static enum outcome read_question(struct task *t, uint64_t nr, const uint64_t args[6]) {
    char head[MAX_SHEBANG];
    enum outcome outcome = read_call(t, nr, args);
    if (outcome != ASK) return outcome;
    if (!q.named[0] && !(q.flags & AT_EMPTY_PATH)) return LET_FAIL;
    int error = look_at(t, q.dirfd, q.named, !(q.flags & AT_SYMLINK_NOFOLLOW), &q.program, q.text, head);
    if (!error) error = expand(t, head);
    if (!error && !absolute_path(t)) error = -EACCES;
    if (error == -ENOENT) return LET_FAIL;
    if (error) return refuse(t, NOTE_EXEC_UNREADABLE, EACCES, "the program, or its interpreter, cannot be read");
    return ASK;
}

static struct approval *new_approval(struct task *t) {
    /* argv as the new image must show it: the expansion, then argv without its first word. */
    const char *rest = q.words;
    size_t rest_size = q.argv_size;
    if (q.expansion_size && q.argc) {
        size_t first = strlen(rest) + 1;
        rest += first;
        rest_size -= first;
    }
    bool empty = !q.expansion_size && !q.argc; /* the kernel makes it one empty word */
    size_t argv_size = q.expansion_size + rest_size + empty;
    struct approval *a = must_alloc(sizeof *a + argv_size + q.env_size);
    a->dev = q.image.st_dev;
    a->ino = q.image.st_ino;
    a->scope = t->scope;
    a->argv_size = argv_size;
    a->env_size = q.env_size;
    memcpy(a->bytes, q.expansion, q.expansion_size);
    memcpy(a->bytes + q.expansion_size, rest, rest_size);
    memcpy(a->bytes + argv_size, q.env, q.env_size);
    return a;
}

static void ask(struct task *t, const char *env, size_t env_size) {
    t->approval->request = request_new(t);
    message_begin(EXEC, 0, t->request);
    put_u32((uint32_t)task_tgid(t));
    put_u32(task_spawn_id(t));
    put_u32(t->scope);
    put_u64(q.program.st_dev);
    put_u64(q.program.st_ino);
    put_text(q.path);
    put_text(q.text);
    put_text(q.cwd);
    put_text(q.shebang);
    put_blob(q.words, q.argv_size);
    put_blob(env, env_size);
    message_send(-1);
}

void gate_exec(struct task *t, uint64_t nr, const uint64_t args[6]) {
    static char env[MAX_WORDS];
    gate_forget(t);
    if (guard.setup.flags & SETUP_ALLOW_EXEC) return tracee_resume(t->tid, 0);
    switch (read_question(t, nr, args)) {
    case REFUSE: return;
    case LET_FAIL: return tracee_resume(t->tid, 0); /* unapproved: should it succeed after all, it dies */
    case ASK: break;
    }
    size_t room = MAX_WORDS - q.argv_size, env_size = interesting_env(env, room), key_size;
    if (env_size > room) {
        refuse(t, NOTE_EXEC_TOO_LARGE, E2BIG, TOO_LARGE);
        return;
    }
    char *key = make_key(t, env, env_size, &key_size);
    struct entry *e = key ? cache_slot(key, key_size) : NULL;
    t->approval = new_approval(t);
    if (e && e->size == key_size && !memcmp(e->key, key, key_size)) {
        hits++;
        t->approval->scope = e->scope;
        t->approved = true;
        free(key);
        return tracee_resume(t->tid, 0);
    }
    misses++;
    t->approval->key = key;
    t->approval->key_size = key_size;
    ask(t, env, env_size);
}

static void answer_exec(struct task *t, const struct answer *a) {
    if (!a->verdict) {
        gate_forget(t);
        return tracee_refuse(t->tid, (int)a->error);
    }
    t->approved = true;
    if (a->scope != SCOPE_UNCHANGED) t->approval->scope = a->scope;
    if (a->flags & ANSWER_CACHE) cache_store(t->approval);
    free(t->approval->key);
    t->approval->key = NULL;
    tracee_resume(t->tid, 0);
}

/* An answer to what `t` is waiting for: an exec, or a change to a path. */
void gate_answer(struct task *t, const struct answer *a) {
    request_drop(t);
    tracee_tell(t->tid, a->note);
    if (t->approval) return answer_exec(t, a);
    if (a->verdict) tracee_resume(t->tid, 0);
    else tracee_refuse(t->tid, (int)a->error);
}

void gate_forget(struct task *t) {
    if (t->approval) free(t->approval->key);
    free(t->approval);
    t->approval = NULL;
    t->approved = false;
}

/* After */

static bool file_is(const char *format, pid_t pid, const char *want, size_t size) {
    static char found[MAX_ENV + EXPANSION];
    char path[32];
    snprintf(path, sizeof path, format, pid);
    ssize_t n = read_file(path, found, sizeof found);
    return n == (ssize_t)size && !memcmp(found, want, size);
}

static const char *difference(struct task *t) {
    const struct approval *a = t->approval;
    char path[32];
    struct stat st;
    if (!a || !t->approved) return "nothing was approved";
    snprintf(path, sizeof path, "/proc/%d/exe", t->tid);
    if (stat(path, &st)) return "the program cannot be identified";
    if (st.st_dev != a->dev || st.st_ino != a->ino) return "another program than the approved one";
    if (!file_is("/proc/%d/cmdline", t->tid, a->bytes, a->argv_size)) return "another argv than the approved one";
    if (!file_is("/proc/%d/environ", t->tid, a->bytes + a->argv_size, a->env_size))
        return "another environment than the approved one";
    return NULL;
}

void gate_execed(struct task *t) {
    bool baseline = guard.setup.flags & SETUP_ALLOW_EXEC;
    const char *why = baseline ? NULL : difference(t);
    if (why) {
        kill(t->tid, SIGKILL); /* still in its exec stop: it dies without running anything */
        note(NOTE_EXEC_RACE, (uint32_t)t->tid, task_spawn_id(t), "%s: killed before its first instruction", why);
        gate_forget(t);
        return;
    }
    if (!baseline) {
        t->scope = t->approval->scope;
        if (t->approval->request) {
            message_begin(EXECUTED, 0, t->approval->request);
            put_u32((uint32_t)t->tid);
            message_send(-1);
        }
    }
    gate_forget(t);
    if (t->spawn && !t->spawn->started && t->spawn->pid == t->tid) spawn_started(t->spawn);
    tracee_resume(t->tid, 0);
}

void gate_statistics(void) {
    note(NOTE_CACHE, 0, 0, "hits=%llu misses=%llu", (unsigned long long)hits, (unsigned long long)misses);
}
