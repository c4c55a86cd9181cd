/* The file system rules (L1). Confines the guard itself, once: so every spawn is in one Landlock domain, in
 * which processes of different spawns may signal each other, and nobody may signal anybody outside. */
#include "guard.h"

#include <linux/landlock.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

/* Bits that older headers lack (include/uapi/linux/landlock.h). */
enum {
    REFER = 1 << 13, TRUNCATE = 1 << 14, IOCTL_DEV = 1 << 15,
    SCOPE_ABSTRACT_UNIX_SOCKET = 1 << 0, SCOPE_SIGNAL = 1 << 1,
    FIRST_ABI = (1 << 13) - 1,
    ON_FILES = LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_READ_FILE |
               TRUNCATE | IOCTL_DEV,
};
struct ruleset {
    uint64_t files, network, scopes; /* 8, 16 and 24 bytes: ABI 1, 4 and 6 */
};

int landlock_abi(void) {
    long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
    return abi < 0 ? 0 : (int)abi;
}

/* INVARIANT: what the ABI can handle is handled, because an unhandled right is an allowed one
 * (test_rights_are_what_the_letters_say). Network rights are left alone on purpose: the network namespace has nothing but loopback. */
static uint64_t handled(int abi) {
    return FIRST_ABI | (abi >= 2 ? REFER : 0) | (abi >= 3 ? TRUNCATE : 0) | (abi >= 5 ? IOCTL_DEV : 0);
}

static uint64_t rights(const char *letters) {
    uint64_t r = 0;
    for (; *letters; letters++) switch (*letters) {
        case 'r': r |= LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR; break;
        case 'w': r |= LANDLOCK_ACCESS_FS_WRITE_FILE | TRUNCATE; break;
        case 'x': r |= LANDLOCK_ACCESS_FS_EXECUTE; break;
        case 'd': r |= IOCTL_DEV; break;
        case 'c': /* never devices */
            r |= LANDLOCK_ACCESS_FS_MAKE_REG | LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_MAKE_SYM |
                 LANDLOCK_ACCESS_FS_MAKE_FIFO | LANDLOCK_ACCESS_FS_MAKE_SOCK | LANDLOCK_ACCESS_FS_REMOVE_FILE |
                 LANDLOCK_ACCESS_FS_REMOVE_DIR | REFER;
            break;
        default: return 0; /* an unknown letter grants nothing */
        }
    return r;
}

static int add_rule(int ruleset, const char *letters, const char *path, int abi) {
    struct stat st;
    struct landlock_path_beneath_attr rule = {.allowed_access = rights(letters) & handled(abi)};
    rule.parent_fd = open(path, O_PATH | O_CLOEXEC);
    if (rule.parent_fd < 0) return errno == ENOENT ? 0 : -errno; /* nothing there, nothing granted */
    int error = fstat(rule.parent_fd, &st) ? -errno : 0;
    if (!error && !S_ISDIR(st.st_mode)) rule.allowed_access &= ON_FILES;
    bool wanted = !error && rule.allowed_access;
    if (wanted && syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0)) error = -errno;
    close(rule.parent_fd);
    return error;
}

int landlock_confine(const struct strings *rules, int abi) {
    struct ruleset wanted = {.files = handled(abi), .scopes = SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL};
    size_t size = abi >= 6 ? sizeof wanted : offsetof(struct ruleset, network);
    int ruleset = (int)syscall(SYS_landlock_create_ruleset, &wanted, size, 0);
    if (ruleset < 0) return -errno;
    int error = add_rule(ruleset, "r", "/proc", abi); /* the gate reads memory, argv and descriptors there */
    for (uint32_t i = 0; i < rules->n && !error; i += 2)
        error = add_rule(ruleset, rules->v[i], rules->v[i + 1], abi);
    if (!error && syscall(SYS_landlock_restrict_self, ruleset, 0)) error = -errno;
    close(ruleset);
    return error;
}
