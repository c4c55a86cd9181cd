/* The mounts that the engine cannot make: the copy-on-write workspace, and what lies over it.
 *
 * An ordinary user may mount an overlay only in a user namespace that owns the mount namespace. So the guard makes
 * both, mounts, and gives every capability away again. What was mounted before is locked from then on: the kernel lets
 * nobody in the new namespace unmount it or make it writable (mount_namespaces(7)). */
#include "guard.h"

#include <linux/capability.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>

#define OVERLAY "--overlay" /* TARGET LOWERS UPPER WORK: what is below (folders joined by `:`, the topmost first), writable,
                             * with the changes in UPPER; or read-only, where UPPER and WORK are empty */
#define SHOW "--show"       /* SOURCE TARGET: one place at another, as read-only as it was */
#define HIDE "--hide"       /* FOLDER: nothing, in its place */
#define SEAL "--seal"       /* FOLDER: a mount, read-only from now on */

static int write_file(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return -errno;
    ssize_t size = (ssize_t)strlen(text), n = write(fd, text, (size_t)size);
    int error = n == size ? 0 : n < 0 ? -errno : -EIO;
    close(fd);
    return error;
}

/* The same user and group as outside, and nobody else (user_namespaces(7): one line needs no privilege). */
static int own_namespaces(void) {
    char map[64];
    uid_t uid = geteuid();
    gid_t gid = getegid();
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS)) return -errno;
    snprintf(map, sizeof map, "%u %u 1", uid, uid);
    int error = write_file("/proc/self/uid_map", map);
    if (!error) error = write_file("/proc/self/setgroups", "deny");
    snprintf(map, sizeof map, "%u %u 1", gid, gid);
    if (!error) error = write_file("/proc/self/gid_map", map);
    return error;
}

/* A folder at another place, read-only: what an overlay of one layer alone would be, which the kernel does not make. */
static int alone(char **a) {
    struct statvfs before;
    if (mount(a[1], a[0], NULL, MS_BIND, NULL) || statvfs(a[0], &before)) return -errno;
    unsigned long flags = MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV;
    if (before.f_flag & ST_NOEXEC) flags |= MS_NOEXEC; /* locked: it cannot be taken away */
    if (before.f_flag & ST_NOATIME) flags |= MS_NOATIME;
    if (before.f_flag & ST_NODIRATIME) flags |= MS_NODIRATIME;
    if (before.f_flag & ST_RELATIME) flags |= MS_RELATIME;
    return mount(NULL, a[0], NULL, flags, NULL) ? -errno : 0;
}

static int overlay(char **a) {
    char options[4096]; /* of mount(2)'s text the kernel reads a page, and the rest it ignores */
    bool writable = *a[2] || *a[3];
    int n = snprintf(options, sizeof options, "lowerdir=%s%s%s%s%s,userxattr", a[1], writable ? ",upperdir=" : "", a[2],
                     writable ? ",workdir=" : "", a[3]);
    if (n < 0 || (size_t)n >= sizeof options) return -ENAMETOOLONG;
    if (!writable && !strchr(a[1], ':')) return alone(a);
    return mount("overlay", a[0], "overlay", MS_NOSUID | MS_NODEV | (writable ? 0 : MS_RDONLY), options) ? -errno : 0;
}

static int show(char **a) {
    return mount(a[0], a[1], NULL, MS_BIND | MS_REC, NULL) ? -errno : 0;
}

static int hide(char **a) {
    return mount("tmpfs", a[0], "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, "size=4k,mode=0") ? -errno : 0;
}

static int seal(char **a) {
    unsigned long flags = MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC;
    return mount(NULL, a[0], NULL, flags, NULL) ? -errno : 0;
}

static int no_capabilities(void) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {{0}};
    for (int c = 0; c < 64; c++) prctl(PR_CAPBSET_DROP, c, 0, 0, 0);
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    return syscall(SYS_capset, &header, none) ? -errno : 0;
}

/* Do what the arguments say, in their order, and return how many there were. 0: no mounts were asked for.
 * INVARIANT: whoever comes back from here has no capability (test_the_guard_keeps_no_capability_of_its_mounts). */
int mounts_make(int argc, char **argv, const char **step, int *error) {
    static const struct {
        const char *name;
        int words;
        int (*make)(char **);
    } kinds[] = {{OVERLAY, 4, overlay}, {SHOW, 2, show}, {HIDE, 1, hide}, {SEAL, 1, seal}};
    int at = 0;
    *error = 0;
    while (at < argc) {
        size_t k = 0;
        while (k < sizeof kinds / sizeof *kinds && strcmp(argv[at], kinds[k].name)) k++;
        if (k == sizeof kinds / sizeof *kinds || at + kinds[k].words >= argc) break;
        *step = "user namespace";
        if (!at && (*error = own_namespaces())) return at;
        *step = kinds[k].name + 2;
        if ((*error = kinds[k].make(argv + at + 1))) return at;
        at += 1 + kinds[k].words;
    }
    *step = "capabilities";
    if (at) *error = no_capabilities();
    return at;
}
