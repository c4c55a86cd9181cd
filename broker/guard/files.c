/* Labels for changes to paths (L3): early, explained refusals.
 *
 * In: a task stopped before a call that changes a path. Out: the call goes on, or FILE is asked. A refusal is
 * sound, because the call does not run. An allowed path may be another one by the time the call runs: what
 * makes a change impossible is a mount, Landlock, or the landing. */
#include "guard.h"

#include <sys/syscall.h>

#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif

enum op { WRITE = 1, DELETE, RENAME, LINK, SYMLINK, MKDIR, MKNOD, MODE, OWNER, XATTR, TRUNCATE, TIMES };
enum { NO = -1 };

/* Where a call keeps its arguments. dir, dir2, flags: NO for none; path2 NO for one path only. */
static const struct call {
    int nr;
    uint8_t op;
    int8_t dir, path, dir2, path2, flags;
    bool follow;
} calls[] = {
#ifdef SYS_open
    {SYS_open, WRITE, NO, 0, NO, NO, 1, true},
    {SYS_creat, WRITE, NO, 0, NO, NO, NO, true},
    {SYS_unlink, DELETE, NO, 0, NO, NO, NO, false},
    {SYS_rmdir, DELETE, NO, 0, NO, NO, NO, false},
    {SYS_rename, RENAME, NO, 0, NO, 1, NO, false},
    {SYS_link, LINK, NO, 0, NO, 1, NO, false},
    {SYS_symlink, SYMLINK, NO, 1, NO, 0, NO, false},
    {SYS_mkdir, MKDIR, NO, 0, NO, NO, NO, false},
    {SYS_mknod, MKNOD, NO, 0, NO, NO, NO, false},
    {SYS_chmod, MODE, NO, 0, NO, NO, NO, true},
    {SYS_chown, OWNER, NO, 0, NO, NO, NO, true},
    {SYS_lchown, OWNER, NO, 0, NO, NO, NO, false},
    {SYS_utime, TIMES, NO, 0, NO, NO, NO, true},
    {SYS_utimes, TIMES, NO, 0, NO, NO, NO, true},
    {SYS_futimesat, TIMES, 0, 1, NO, NO, NO, true},
#endif
#ifdef SYS_renameat
    {SYS_renameat, RENAME, 0, 1, 2, 3, NO, false},
#endif
    {SYS_openat, WRITE, 0, 1, NO, NO, 2, true},
    {SYS_openat2, WRITE, 0, 1, NO, NO, NO, true},
    {SYS_truncate, TRUNCATE, NO, 0, NO, NO, NO, true},
    {SYS_unlinkat, DELETE, 0, 1, NO, NO, NO, false},
    {SYS_renameat2, RENAME, 0, 1, 2, 3, NO, false},
    {SYS_linkat, LINK, 0, 1, 2, 3, 4, false},
    {SYS_symlinkat, SYMLINK, 1, 2, NO, 0, NO, false},
    {SYS_mkdirat, MKDIR, 0, 1, NO, NO, NO, false},
    {SYS_mknodat, MKNOD, 0, 1, NO, NO, NO, false},
    {SYS_fchmodat, MODE, 0, 1, NO, NO, NO, true},
    {SYS_fchmodat2, MODE, 0, 1, NO, NO, 3, true},
    {SYS_fchownat, OWNER, 0, 1, NO, NO, 4, true},
    {SYS_utimensat, TIMES, 0, 1, NO, NO, 3, true},
    {SYS_setxattr, XATTR, NO, 0, NO, NO, NO, true},
    {SYS_lsetxattr, XATTR, NO, 0, NO, NO, NO, false},
    {SYS_removexattr, XATTR, NO, 0, NO, NO, NO, true},
    {SYS_lremovexattr, XATTR, NO, 0, NO, NO, NO, false},
};

static const struct call *find_call(uint64_t nr) {
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if ((uint64_t)calls[i].nr == nr) return &calls[i];
    return NULL;
}

bool files_is_change(uint64_t nr) { return find_call(nr); }

unsigned files_syscalls(unsigned *numbers, unsigned size) {
    unsigned n = 0;
    for (size_t i = 0; i < sizeof calls / sizeof *calls && n < size; i++) numbers[n++] = (unsigned)calls[i].nr;
    return n;
}

static void unreadable(struct task *t, int error, const char *why) {
    if (error == EACCES)
        note(NOTE_PATH_UNREADABLE, (uint32_t)task_tgid(t), task_spawn_id(t), "%s: refused", why);
    tracee_refuse(t->tid, error);
}

/* 0, or the error that the call gets. */
static int read_path(struct memory *m, uint64_t at, char out[PATH_MAX]) {
    if (at < 4096) return EFAULT; /* a program's own mistake, not worth a note */
    ssize_t n = memory_string(m, at, out, PATH_MAX);
    if (n == -E2BIG) return ENAMETOOLONG;
    return n < 0 ? EACCES : 0;
}

struct open_meaning {
    uint64_t flags;
    bool writes, makes, unnamed; /* unnamed: O_TMPFILE */
};

/* openat2 keeps its flags in memory, where they can change after this look, like the path itself. */
static struct open_meaning open_meaning(const struct call *c, const uint64_t args[6], struct memory *m) {
    uint64_t flags = O_WRONLY | O_CREAT | O_TRUNC;
    if (c->flags != NO) {
        flags = args[c->flags];
    } else if (c->nr == SYS_openat2) {
        uint64_t how = args[2];
        flags = 0;
        if (how > INT64_MAX || pread(m->fd, &flags, sizeof flags, (off_t)how) != sizeof flags) flags = O_RDWR | O_CREAT;
    }
    return (struct open_meaning){.flags = flags,
                                 .writes = flags & (O_WRONLY | O_RDWR | O_TRUNC),
                                 .makes = flags & O_CREAT,
                                 .unnamed = (flags & O_TMPFILE) == O_TMPFILE};
}

static bool follows(const struct call *c, const uint64_t args[6], uint64_t open_flags) {
    if (c->op == WRITE) return !(open_flags & O_NOFOLLOW) && (open_flags & (O_CREAT | O_EXCL)) != (O_CREAT | O_EXCL);
    if (c->flags == NO) return c->follow;
    if (c->op == LINK) return args[c->flags] & AT_SYMLINK_FOLLOW;
    return !(args[c->flags] & AT_SYMLINK_NOFOLLOW);
}

static bool watched(const char *path) {
    if (path[0] != '/') return false; /* pipe:[7] and the like: an open descriptor of its own */
    return path_watched(path, &guard.setup.roots, &guard.setup.quiet, &guard.setup.names);
}

static bool has_no_name(const struct stat *st) { return S_ISREG(st->st_mode) && !st->st_nlink; }

static int directory(const uint64_t args[6], int8_t where) { return where == NO ? AT_FDCWD : (int)args[where]; }

static void ask(struct task *t, const struct call *c, const char *path, const char *other) {
    message_begin(FILE_CHANGE, 0, request_new(t));
    put_u32((uint32_t)task_tgid(t));
    put_u32(task_spawn_id(t));
    put_u32(t->scope);
    put_u32(c->op);
    put_text(path);
    put_text(other);
    message_send(-1);
}

/* Opening for writing that changes nothing: an existing file, read only; a folder (EISDIR). */
static bool opens_harmlessly(const struct open_meaning *o, const struct stat *st, bool exists) {
    if (!exists) return !o->makes; /* ENOENT */
    if (!o->writes) return true;
    return S_ISDIR(st->st_mode) && !o->unnamed;
}

/* What the path itself is to blame for, the kernel will say too. Anything else (no descriptor, no memory, a bad
 * disk) is the guard's own trouble, and a path that it could not look at is refused. */
static void cannot_locate(struct task *t, int error) {
    switch (error) {
    case -ENOENT: case -ENOTDIR: case -ELOOP: case -EACCES: case -EBADF: case -ENAMETOOLONG:
        return tracee_resume(t->tid, 0);
    default: return unreadable(t, EACCES, "a path that cannot be looked at");
    }
}

void files_change(struct task *t, uint64_t nr, const uint64_t args[6]) {
    const struct call *c = find_call(nr);
    struct memory m;
    char first[PATH_MAX], second[PATH_MAX] = "";
    static char path[MAX_PATH_TEXT], other[MAX_PATH_TEXT];
    struct stat st, st2;

    if (c->op == TIMES && c->dir != NO && !args[c->path]) return tracee_resume(t->tid, 0); /* futimens: an open file */
    if (memory_open(&m, t->tid)) return unreadable(t, EACCES, "its memory cannot be opened");
    int error = read_path(&m, args[c->path], first);
    if (!error && c->path2 != NO) error = read_path(&m, args[c->path2], second);
    struct open_meaning o = open_meaning(c, args, &m);
    memory_close(&m);
    if (error) return unreadable(t, error, "a path that cannot be read");

    bool follow = follows(c, args, o.flags);
    int found = path_locate(t, directory(args, c->dir), first, follow, path, &st);
    if (found == -ENAMETOOLONG) return unreadable(t, ENAMETOOLONG, "");
    if (found && found != -ENOENT) return cannot_locate(t, found);
    bool exists = !found, ask_first = watched(path) && !(exists && has_no_name(&st)), ask_second = false;
    bool creates = c->op == WRITE || c->op == SYMLINK || c->op == MKDIR || c->op == MKNOD;
    if (!exists && !creates) return tracee_resume(t->tid, 0);

    if (c->op == WRITE && opens_harmlessly(&o, &st, exists)) return tracee_resume(t->tid, 0);
    if (c->op == SYMLINK) strcpy(other, second); /* the target's text, never resolved */
    else if (c->path2 == NO) other[0] = 0;
    else {
        found = path_locate(t, directory(args, c->dir2), second, false, other, &st2);
        if (found == -ENAMETOOLONG) return unreadable(t, ENAMETOOLONG, "");
        if (found && found != -ENOENT) return cannot_locate(t, found);
        ask_second = watched(other);
    }
    /* The kernel's own answer, whoever asks and wherever: `mkdir -p` tries each folder from the top. */
    bool makes_name = c->op == SYMLINK || c->op == MKDIR || c->op == MKNOD;
    if (exists && makes_name && ask_first) tracee_refuse(t->tid, EEXIST);
    else if (ask_first || ask_second) ask(t, c, path, other);
    else tracee_resume(t->tid, 0);
}
