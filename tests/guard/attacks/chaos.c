/* chaos SEED ROUNDS: a hostile process. It makes the calls that the guard looks at with random arguments: wild
 * pointers, unaligned arrays, endless strings, closed descriptors, memory that other threads scribble over and
 * unmap, from threads, forks and vforks, and kills some of them in the middle. It prints "done" if it lives. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { AREA = 1 << 20 };
static char *area;
static __thread uint64_t state;

static uint64_t next(void) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

static const char *const words[] = {
    "/bin/true", "/proc/self/exe", "/proc/self/fd/0", "/proc/thread-self/cwd/x", ".", "..", "/", "", "a/../b", "/dev/fd/3",
    "/work/s", "/proc/1/root/bin/true", "/proc/self/root/proc/self/root/work/y", "loop", "x\n", "/memfd:x", "a//b///", "\xff\xfe",
};

static uint64_t pointer(void) {
    switch (next() % 8) {
    case 0: return next();
    case 1: return 0;
    case 2: return (uint64_t)(uintptr_t)area + AREA - next() % 16;          /* runs off the end */
    case 3: return (uint64_t)(uintptr_t)area + next() % AREA;               /* scribbled, perhaps endless */
    default: return (uint64_t)(uintptr_t)words[next() % (sizeof words / sizeof *words)];
    }
}

static uint64_t array(char *room) {
    uint64_t *at = (uint64_t *)(room + next() % 8);
    unsigned n = (unsigned)(next() % 12);
    for (unsigned i = 0; i < n; i++) memcpy(&at[i], &(uint64_t){pointer()}, 8);
    memset(&at[n], 0, 8);
    return next() % 10 ? (uint64_t)(uintptr_t)at : pointer();
}

static void one_call(void) {
    static const int calls[] = {
#ifdef SYS_open
        SYS_open, SYS_rename, SYS_unlink, SYS_mkdir, SYS_symlink, SYS_link, SYS_chmod,
#endif
        SYS_openat, SYS_openat2, SYS_renameat2, SYS_unlinkat, SYS_mkdirat, SYS_symlinkat, SYS_linkat, SYS_fchmodat,
        SYS_fchownat, SYS_utimensat, SYS_setxattr, SYS_truncate, SYS_mknodat,
    };
    char room[256];
    int fd = next() % 3 ? AT_FDCWD : (int)(next() % 8) - 2;
    switch (next() % 4) {
    case 0: syscall(SYS_execve, pointer(), array(room), next() % 2 ? array(room + 128) : 0); break;
    case 1: syscall(SYS_execveat, fd, pointer(), array(room), 0, next() % 2 ? AT_EMPTY_PATH : next()); break;
    default: {
        int nr = calls[next() % (sizeof calls / sizeof *calls)];
        if (next() % 2) syscall(nr, pointer(), pointer(), pointer(), pointer(), next() % 3 ? 0 : next());
        else syscall(nr, fd, pointer(), next() % 2 ? (uint64_t)fd : pointer(), pointer(), next() % 2 ? 0x1000 : next());
    }
    }
}

static void *scribble(void *seed) {
    state = (uint64_t)(uintptr_t)seed | 1;
    for (int i = 0; i < 20000; i++) {
        if (next() % 1000 == 0) madvise(area + next() % 200 * 4096, 4096, MADV_DONTNEED);
        area[next() % AREA] = (char)(next() % 4 ? 'x' : 0);
    }
    return NULL;
}

static void *call_thread(void *seed) {
    state = (uint64_t)(uintptr_t)seed | 1;
    for (int i = 0; i < 10; i++) one_call();
    return NULL;
}

static void one_round(void) {
    pthread_t t;
    signal(SIGSEGV, SIG_DFL);
    for (int i = 0; i < 2; i++) pthread_create(&t, NULL, scribble, (void *)(uintptr_t)next());
    for (int i = 0; i < 3; i++) pthread_create(&t, NULL, call_thread, (void *)(uintptr_t)next());
    for (int i = 0; i < 10; i++) {
        if (next() % 4 == 0) {
            pid_t child = vfork();
            if (!child) {
                one_call();
                _exit(0);
            }
        }
        one_call();
    }
    _exit(0);
}

int main(int argc, char **argv) {
    if (argc < 3) return 64;
    state = strtoull(argv[1], NULL, 10) * 2654435761u + 1;
    area = mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    memset(area, 'x', AREA);
    (void)!symlink("loop", "/work/loop");
    signal(SIGCHLD, SIG_DFL);
    for (int round = atoi(argv[2]); round; round--) {
        pid_t child = fork();
        state += (uint64_t)round;
        if (!child) {
            setpgid(0, 0);
            one_round();
        }
        if (next() % 3 == 0) usleep((unsigned)(next() % 3000)), kill(-child, SIGKILL);
        while (waitpid(child, NULL, 0) < 0) { }
    }
    puts("done");
    return 0;
}
