/* `broker file read` and `broker file write`: what the file tools run inside, under the sandbox's own rules. No call is
 * made: whatever the sandbox refuses, it refuses here too.
 *
 * Exit codes: 1 it failed; 2 there is no such file; 3 the file is not what was expected; 13 not permitted. */
#include "guard.h"

#include <signal.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/syscall.h>

enum { FAILED = 1, MISSING = 2, CHANGED = 3, REFUSED = 13, WRONG_USAGE = 64, LINKS_AT_MOST = 40 };
static const char USAGE_TEXT[] =
    "broker file read PATH [OFFSET [LENGTH]]\n"
    "    prints SIZE MTIME_NS INODE MODE on a line, then the bytes\n"
    "broker file write [--parents] [--new | --if \"SIZE MTIME_NS INODE\"] PATH\n"
    "    replaces the file by standard input, at once or not at all\n\n"
    "broker file read src/main.go 0 4096\n"
    "broker file write --if \"120 1700000000000000000 4711\" notes.md <draft\n";

static int failed(const char *path, int error) {
    char reason[256];
    snprintf(reason, sizeof reason, ": %s", strerror(error));
    return client_says(error == EACCES || error == EPERM ? REFUSED : FAILED, path, reason);
}

static int usage(void) {
    return client_says(WRONG_USAGE, "", "usage: broker file read PATH [OFFSET [LENGTH]] | broker file write "
                                        "[--parents] [--new | --if \"SIZE MTIME_NS INODE\"] PATH");
}

/* A decimal number and nothing else, up to `end`. */
static bool number(const char **text, char end, uint64_t *value) {
    char *rest;
    if (**text < '0' || **text > '9') return false;
    errno = 0;
    *value = strtoull(*text, &rest, 10);
    if (errno || *rest != end || *value > INT64_MAX) return false;
    *text = rest + (end ? 1 : 0);
    return true;
}

static uint64_t modified(const struct stat *st) {
    return (uint64_t)st->st_mtim.tv_sec * 1000000000u + (uint64_t)st->st_mtim.tv_nsec;
}

/* read */

static int copy_out(int fd, const char *path, uint64_t offset, uint64_t length) {
    static char bytes[64 * 1024];
    while (length) {
        ssize_t n = pread(fd, bytes, length < sizeof bytes ? (size_t)length : sizeof bytes, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return failed(path, errno);
        if (!n) break;
        if (!write_all(1, bytes, (size_t)n)) return errno == EPIPE ? 128 + SIGPIPE : failed("the output", errno);
        offset += (uint64_t)n, length -= (uint64_t)n;
    }
    return 0;
}

static int read_verb(char **words) {
    uint64_t offset = 0, length = INT64_MAX;
    if (*words && !strcmp(*words, "--")) words++;
    const char *path = words[0], *at = path ? words[1] : NULL, *count = at ? words[2] : NULL;
    if (!path || (at && !number(&at, 0, &offset)) || (count && (words[3] || !number(&count, 0, &length)))) return usage();
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC); /* a pipe without a writer would wait */
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR)) return client_says(MISSING, path, ": no such file");
    struct stat st;
    if (fd < 0 || fstat(fd, &st)) return failed(path, errno);
    if (!S_ISREG(st.st_mode)) return client_says(FAILED, path, S_ISDIR(st.st_mode) ? ": it is a folder" : ": it is no regular file");
    char line[128];
    int n = snprintf(line, sizeof line, "%llu %llu %llu %o\n", (unsigned long long)st.st_size,
                     (unsigned long long)modified(&st), (unsigned long long)st.st_ino, st.st_mode & 07777);
    if (!write_all(1, line, (size_t)n)) return errno == EPIPE ? 128 + SIGPIPE : failed("the output", errno);
    return copy_out(fd, path, offset, length);
}

/* write */

static struct {
    const char *path;
    bool parents, fresh, only_if;
    uint64_t size, mtime, inode;
} want;
static int folder = -1;
static char temporary[NAME_MAX + 1]; /* empty: there is none */

static void discard(void) {
    if (*temporary) unlinkat(folder, temporary, 0);
    *temporary = 0;
}

static void interrupted(int signal_number) {
    discard();
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

/* From the path of a link to the path of what it leads to, so that the link stays. It may lead to nothing yet. */
static int follow_links(char path[PATH_MAX]) {
    char text[PATH_MAX];
    for (int links = 0;; links++) {
        ssize_t n = readlink(path, text, sizeof text);
        if (n < 0) return errno == EINVAL || errno == ENOENT ? 0 : errno;
        if (links == LINKS_AT_MOST) return ELOOP;
        char *slash = strrchr(path, '/');
        size_t head = *text == '/' || !slash ? 0 : (size_t)(slash - path) + 1;
        if ((size_t)n >= sizeof text || head + (size_t)n >= PATH_MAX) return ENAMETOOLONG;
        memcpy(path + head, text, (size_t)n);
        path[head + (size_t)n] = 0;
    }
}

static int make_parents(char *path) {
    for (char *slash = path; (slash = strchr(slash + 1, '/'));) {
        *slash = 0;
        bool made = !mkdir(path, 0777) || errno == EEXIST;
        int error = errno;
        /* Where nothing may be made, what is there already may still be passed. */
        struct stat st;
        made = made || (!stat(path, &st) && S_ISDIR(st.st_mode));
        *slash = '/';
        if (!made) return error;
    }
    return 0;
}

/* Whether what is there now is what was asked for. 0, or an exit code with its sentence said. */
static int check(const char *name, struct stat *st, bool *exists) {
    *exists = !fstatat(folder, name, st, AT_SYMLINK_NOFOLLOW);
    if (!*exists && errno != ENOENT) return failed(want.path, errno);
    if (*exists && want.fresh) return client_says(CHANGED, want.path, ": it exists already");
    if (*exists && !S_ISREG(st->st_mode)) return client_says(FAILED, want.path, S_ISDIR(st->st_mode) ? ": it is a folder" : ": it is no regular file");
    bool same = *exists && (uint64_t)st->st_size == want.size && modified(st) == want.mtime && st->st_ino == want.inode;
    if (want.only_if && !same) return client_says(CHANGED, want.path, ": it changed meanwhile");
    return 0;
}

static int open_temporary(const char *name) {
    unsigned char random[8];
    char hex[17];
    if (getrandom(random, sizeof random, 0) != sizeof random) return -1;
    for (int i = 0; i < 8; i++) snprintf(hex + 2 * i, 3, "%02x", random[i]);
    snprintf(temporary, sizeof temporary, ".%.*s.broker-%s", NAME_MAX - 1 - 8 - 16, name, hex);
    int fd = openat(folder, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    int error = errno;
    if (fd < 0) *temporary = 0;
    errno = error;
    return fd;
}

static int copy_in(int fd) {
    static char bytes[64 * 1024];
    for (;;) {
        ssize_t n = read(0, bytes, sizeof bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n ? errno : 0;
        if (!write_all(fd, bytes, (size_t)n)) return errno;
    }
}

static int replace(const char *name) {
    struct stat st;
    bool exists;
    int code = check(name, &st, &exists);
    if (code) return code;
    /* A file is replaced by rename(2), which asks the folder only: what its owner made read-only stays as it is. */
    if (exists && faccessat(folder, name, W_OK, 0)) return failed(want.path, errno);
    mode_t mask = umask(0);
    umask(mask);
    int fd = open_temporary(name), error = fd < 0 ? errno : copy_in(fd);
    if (!error && fchmod(fd, exists ? st.st_mode & 0777 : 0644 & ~mask)) error = errno;
    if (!error && close(fd)) error = errno;
    if (error) return failed(want.path, error);
    if ((code = check(name, &st, &exists))) return code;
    if (want.fresh && !syscall(SYS_renameat2, folder, temporary, folder, name, 1 /* RENAME_NOREPLACE */)) *temporary = 0;
    else if (want.fresh && errno == EEXIST) return client_says(CHANGED, want.path, ": it exists already");
    else if (want.fresh || renameat(folder, temporary, folder, name)) return failed(want.path, errno);
    *temporary = 0;
    return 0;
}

static bool take_options(char ***words) {
    char **w = *words;
    for (; *w && !strncmp(*w, "--", 2); w++) {
        if (!strcmp(*w, "--parents")) want.parents = true;
        else if (!strcmp(*w, "--new")) want.fresh = true;
        else if (!strcmp(*w, "--if") && w[1]) {
            const char *text = *++w;
            want.only_if = true;
            if (!number(&text, ' ', &want.size) || !number(&text, ' ', &want.mtime) || !number(&text, 0, &want.inode))
                return false;
        } else if (!strcmp(*w, "--")) {
            w++;
            break;
        } else return false;
    }
    *words = w;
    return !(want.fresh && want.only_if);
}

static int write_verb(char **words) {
    static char path[PATH_MAX];
    if (!take_options(&words) || !words[0] || words[1] || !*words[0]) return usage();
    want.path = words[0];
    if (snprintf(path, sizeof path, "%s", want.path) >= (int)sizeof path) return failed(want.path, ENAMETOOLONG);
    int error = want.fresh ? 0 : follow_links(path);
    if (!error && want.parents) error = make_parents(path);
    if (error) return failed(want.path, error);
    char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    if (!*name || !strcmp(name, ".") || !strcmp(name, "..")) return client_says(FAILED, want.path, ": it is a folder");
    if (slash) *slash = 0;
    folder = open(!slash ? "." : *path ? path : "/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0 && errno == ENOENT) return client_says(FAILED, want.path, ": its folder does not exist (--parents makes it)");
    if (folder < 0) return failed(want.path, errno);
    signal(SIGXFSZ, SIG_IGN); /* the limit of file size is an error with a sentence, too */
    const int ends[] = {SIGINT, SIGTERM, SIGHUP};
    for (int i = 0; i < 3; i++) signal(ends[i], interrupted);
    int code = replace(name);
    discard();
    return code;
}

int client_file(char **words) {
    if (*words && !strcmp(*words, "read")) return read_verb(words + 1);
    if (*words && !strcmp(*words, "write")) return write_verb(words + 1);
    if (!*words || strcmp(*words, "--help")) return usage();
    write_all(1, USAGE_TEXT, sizeof USAGE_TEXT - 1);
    return 0;
}
