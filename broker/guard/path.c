/* Paths as a traced process means them: its working directory, its descriptors, its /proc/self.
 *
 * In: a stopped task and a path that it named. Out: an O_PATH descriptor, or the absolute text with symbolic
 * links resolved. Both share one mount namespace and root with the guard (chroot and mount are refused). Of an
 * allowed path change this is only a label: the path can change between the look and the call. Of an exec it
 * is the identity that the second look is held against. */
#include "guard.h"

#include <ctype.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/vfs.h>

enum { PROC_MAGIC = 0x9fa0, PROC_ROOT_INODE = 1, MAX_LINKS = 40 };

static int open_base(struct task *t, int dirfd, const char *path) {
    char name[48];
    if (path[0] == '/') return open("/", O_PATH | O_CLOEXEC);
    if (dirfd == AT_FDCWD) snprintf(name, sizeof name, "/proc/%d/cwd", t->tid);
    else snprintf(name, sizeof name, "/proc/%d/fd/%d", t->tid, dirfd);
    int fd = open(name, O_PATH | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT && dirfd != AT_FDCWD) errno = EBADF;
    return fd;
}

int path_text(int fd, char out[MAX_PATH_TEXT]) {
    char name[32];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(name, out, MAX_PATH_TEXT - 1);
    if (n < 0) return -errno;
    out[n] = 0;
    return 0;
}

/* The walk, one component at a time: for what the kernel cannot resolve for us in one call, because it would
 * take /proc/self to be this process, or because the last component does not exist yet. */
struct walk {
    int at;                    /* the folder reached */
    char todo[MAX_PATH_TEXT];  /* what is left */
    char missing[NAME_MAX + 1];/* the last component, when it does not exist */
    unsigned links;
};

static int prepend(struct walk *w, const char *target, const char *rest) {
    char joined[MAX_PATH_TEXT];
    int n = snprintf(joined, sizeof joined, "%s%s%s", target, *rest ? "/" : "", rest);
    if (n < 0 || (size_t)n >= sizeof joined) return -ENAMETOOLONG;
    memcpy(w->todo, joined, (size_t)n + 1);
    return 0;
}

static void step_to(struct walk *w, int fd) {
    close(w->at);
    w->at = fd;
}

/* Follow the link `name` in w->at. */
static int follow_link(struct task *t, struct walk *w, const char *name, const char *rest) {
    char target[PATH_MAX];
    struct statfs fs;
    struct stat st;
    if (++w->links > MAX_LINKS) return -ELOOP;
    if (fstatfs(w->at, &fs) || fstat(w->at, &st)) return -errno;
    bool proc = fs.f_type == PROC_MAGIC;
    if (proc && st.st_ino == PROC_ROOT_INODE && !strcmp(name, "self")) {
        snprintf(target, sizeof target, "%d", task_tgid(t));
    } else if (proc && st.st_ino == PROC_ROOT_INODE && !strcmp(name, "thread-self")) {
        snprintf(target, sizeof target, "%d/task/%d", task_tgid(t), t->tid);
    } else if (proc && st.st_ino != PROC_ROOT_INODE) { /* exe, cwd, fd/N: not a text, the object itself */
        int fd = openat(w->at, name, O_PATH | O_CLOEXEC);
        if (fd < 0) return -errno;
        step_to(w, fd);
        return prepend(w, "", rest);
    } else {
        ssize_t n = readlinkat(w->at, name, target, sizeof target - 1);
        if (n < 0) return -errno;
        target[n] = 0;
        if (target[0] == '/') {
            int root = open("/", O_PATH | O_CLOEXEC);
            if (root < 0) return -errno;
            step_to(w, root);
        }
    }
    return prepend(w, target, rest);
}

static int walk(struct task *t, struct walk *w, bool follow) {
    for (;;) {
        char name[NAME_MAX + 1];
        const char *start = w->todo + strspn(w->todo, "/");
        size_t n = strcspn(start, "/");
        if (!n) return 0;
        if (n > NAME_MAX) return -ENAMETOOLONG;
        memcpy(name, start, n);
        name[n] = 0;
        const char *rest = start + n;
        bool last = !rest[strspn(rest, "/")], slash = last && *rest;
        if (!strcmp(name, ".")) {
            memmove(w->todo, rest, strlen(rest) + 1);
            continue;
        }
        int fd = openat(w->at, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0) {
            if (errno != ENOENT) return -errno;
            if (!last) return -ENOTDIR; /* no folder to create it in */
            memcpy(w->missing, name, n + 1);
            return -ENOENT;
        }
        struct stat st;
        if (fstat(fd, &st)) {
            int error = errno;
            close(fd);
            return -error;
        }
        if (S_ISLNK(st.st_mode) && (!last || follow || slash)) {
            close(fd);
            char tail[MAX_PATH_TEXT];
            memcpy(tail, rest, strlen(rest) + 1);
            int error = follow_link(t, w, name, tail);
            if (error) return error;
            continue;
        }
        step_to(w, fd);
        memmove(w->todo, rest, strlen(rest) + 1);
    }
}

static int begin_walk(struct task *t, struct walk *w, int dirfd, const char *path) {
    if (strlen(path) >= PATH_MAX) return -ENAMETOOLONG;
    strcpy(w->todo, path);
    w->missing[0] = 0;
    w->links = 0;
    w->at = open_base(t, dirfd, path);
    return w->at < 0 ? -errno : 0;
}

/* One call of the kernel's own, unless the way leads through /proc. -ELOOP: it does. */
static int open_quickly(struct task *t, int dirfd, const char *path, bool follow) {
    struct open_how how = {.flags = O_PATH | O_CLOEXEC | (follow ? 0 : O_NOFOLLOW),
                           .resolve = RESOLVE_NO_MAGICLINKS};
    int base = path[0] == '/' ? AT_FDCWD : open_base(t, dirfd, path);
    if (base < 0 && base != AT_FDCWD) return -errno;
    int fd = (int)syscall(SYS_openat2, base, path, &how, sizeof how);
    int error = errno;
    if (base >= 0) close(base);
    if (fd < 0) return -error;
    struct statfs fs;
    if (!fstatfs(fd, &fs) && fs.f_type != PROC_MAGIC) return fd;
    close(fd);
    return -ELOOP;
}

static bool needs_walk(int error) { return error == -ELOOP || error == -ENOSYS || error == -EPERM; }

/* What an exec or another use of an existing file means. An empty path: the descriptor itself. */
int path_open(struct task *t, int dirfd, const char *path, bool follow) {
    if (!*path) {
        int fd = open_base(t, dirfd, path);
        return fd < 0 ? -errno : fd;
    }
    int fd = open_quickly(t, dirfd, path, follow);
    if (!needs_walk(fd)) return fd;
    struct walk w;
    int error = begin_walk(t, &w, dirfd, path);
    if (error) return error;
    error = walk(t, &w, follow);
    if (!error) return w.at;
    close(w.at);
    return error;
}

int path_locate(struct task *t, int dirfd, const char *path, bool follow, char out[MAX_PATH_TEXT], struct stat *st) {
    struct walk w;
    int error = 0, fd = *path ? open_quickly(t, dirfd, path, follow) : path_open(t, dirfd, path, follow);
    w.missing[0] = 0;
    if (needs_walk(fd) || fd == -ENOENT) {
        error = begin_walk(t, &w, dirfd, path);
        if (error) return error;
        error = walk(t, &w, follow);
        fd = w.at;
        if (error && !w.missing[0]) {
            close(fd);
            return error;
        }
    } else if (fd < 0) {
        return fd;
    }
    int unnamed = path_text(fd, out);
    if (!unnamed && fstat(fd, st)) unnamed = -errno;
    close(fd);
    if (unnamed) return -ENAMETOOLONG; /* longer than a page: it has no text */
    if (!error) return 0;
    size_t n = strlen(out);
    if (n && out[n - 1] == '/') n--;
    if (n + strlen(w.missing) + 2 > MAX_PATH_TEXT) return -ENAMETOOLONG;
    out[n] = '/';
    strcpy(out + n + 1, w.missing);
    return -ENOENT;
}

/* Matching */

bool path_below(const char *path, const char *root) {
    size_t n = strlen(root);
    while (n && root[n - 1] == '/') n--;
    return !strncmp(path, root, n) && (path[n] == '/' || !path[n]);
}

/* One `*` at either end; the pattern is in lower case, the name in any. */
bool name_matches(const char *name, size_t n, const char *pattern) {
    size_t m = strlen(pattern);
    bool open_start = m && pattern[0] == '*', open_end = m > 1 && pattern[m - 1] == '*';
    if (open_start) pattern++, m--;
    if (open_end) m--;
    if (open_start || open_end ? n < m : n != m) return false;
    size_t first = open_start && !open_end ? n - m : 0, last = open_start ? n - m : 0;
    for (size_t at = first; at <= last; at++) {
        size_t i = 0;
        while (i < m && tolower((unsigned char)name[at + i]) == (unsigned char)pattern[i]) i++;
        if (i == m) return true;
    }
    return false;
}

/* Whether the components that start at `part` are those of a pattern: `a/b` anywhere, `^a/b` directly below a writable
 * root, `=a/b` (and `^=a/b`) as the path's last. */
static bool components_match(const char *part, bool below_root, const char *pattern) {
    if (*pattern == '^') {
        if (!below_root) return false;
        pattern++;
    }
    bool to_the_end = *pattern == '=';
    if (to_the_end) pattern++;
    /* Most patterns end here: each is tried at each component of each changed path. */
    if (*pattern != '*' && *pattern != tolower((unsigned char)*part)) return false;
    char name[NAME_MAX + 1];
    for (;;) {
        size_t n = strcspn(part, "/"), m = strcspn(pattern, "/");
        if (m > NAME_MAX) return false;
        memcpy(name, pattern, m);
        name[m] = 0;
        if (!n || !name_matches(part, n, name)) return false;
        part += n + strspn(part + n, "/");
        pattern += m;
        if (!*pattern) return !to_the_end || !*part;
        pattern++;
    }
}

/* Whether a change to this path must be asked about. */
bool path_watched(const char *path, const struct strings *roots, const struct strings *quiet,
                  const struct strings *names) {
    const char *root = NULL;
    for (uint32_t i = 0; i < quiet->n; i++)
        if (!strcmp(path, quiet->v[i])) return false;
    for (uint32_t i = 0; i < roots->n; i++)
        if (path_below(path, roots->v[i]) && (!root || strlen(roots->v[i]) > strlen(root))) root = roots->v[i];
    if (!root) return true;
    size_t skip = strlen(root);
    while (skip && root[skip - 1] == '/') skip--;
    bool below_root = true;
    for (const char *part = path + skip; *part; below_root = false) {
        part += strspn(part, "/");
        for (uint32_t i = 0; *part && i < names->n; i++)
            if (components_match(part, below_root, names->v[i])) return true;
        part += strcspn(part, "/");
    }
    return false;
}
