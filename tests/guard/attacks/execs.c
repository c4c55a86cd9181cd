/* execs HOW PROGRAM ARGS…: start a program in an unusual way. Prints "errno NAME" when it fails. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static char **words;
extern char **environ;

static void say(const char *what) {
    printf("%s %s\n", what, strerrorname_np(errno) ? strerrorname_np(errno) : "?");
    fflush(stdout);
}

static void *in_thread(void *unused) {
    (void)unused;
    execve(words[0], words, environ);
    say("errno");
    exit(1);
}

static void *spin(void *unused) {
    for (;;) pause();
    return unused;
}

static int copy_to_memfd(const char *path, unsigned flags) {
    static char bytes[1 << 16];
    int in = open(path, O_RDONLY), out = (int)syscall(SYS_memfd_create, "hidden", flags);
    ssize_t n;
    while ((n = read(in, bytes, sizeof bytes)) > 0)
        if (write(out, bytes, (size_t)n) != n) abort();
    close(in);
    return out;
}

static int child_main(void *unused) {
    (void)unused;
    execve(words[0], words, environ);
    say("errno");
    _exit(1);
}

static char stack[65536];

static int wait_for(pid_t pid) {
    int status;
    if (pid < 0) return say("errno"), 1;
    while (waitpid(pid, &status, __WALL) < 0)
        if (errno != EINTR) return 1;
    if (WIFSIGNALED(status)) printf("signal %d\n", WTERMSIG(status));
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int main(int argc, char **argv) {
    if (argc < 3) return 64;
    const char *how = argv[1];
    words = argv + 2;
    pthread_t t;
    if (!strcmp(how, "thread")) {
        for (int i = 0; i < 5; i++) pthread_create(&t, NULL, spin, NULL);
        pthread_create(&t, NULL, in_thread, NULL);
        for (;;) pause();
    } else if (!strcmp(how, "threads")) { /* several at once: one wins, the others die */
        for (int i = 0; i < 8; i++) pthread_create(&t, NULL, in_thread, NULL);
        for (;;) pause();
    } else if (!strcmp(how, "memfd")) {
        int fd = copy_to_memfd(words[0], 0);
        syscall(SYS_execveat, fd, "", words, environ, AT_EMPTY_PATH);
    } else if (!strcmp(how, "memfd-proc")) {
        char path[64];
        snprintf(path, sizeof path, "/proc/self/fd/%d", copy_to_memfd(words[0], 0));
        execve(path, words, environ);
    } else if (!strcmp(how, "opath")) {
        int fd = open(words[0], O_PATH);
        syscall(SYS_execveat, fd, "", words, environ, AT_EMPTY_PATH);
    } else if (!strcmp(how, "dirfd")) {
        int fd = open("/usr/bin", O_PATH | O_DIRECTORY);
        syscall(SYS_execveat, fd, strrchr(words[0], '/') + 1, words, environ, 0);
    } else if (!strcmp(how, "emptyflag")) { /* an empty path without AT_EMPTY_PATH */
        syscall(SYS_execveat, open(words[0], O_PATH), "", words, environ, 0);
    } else if (!strcmp(how, "nofollow")) {
        syscall(SYS_execveat, AT_FDCWD, words[0], words, environ, AT_SYMLINK_NOFOLLOW);
    } else if (!strcmp(how, "vfork")) {
        pid_t pid = vfork();
        if (!pid) {
            execve(words[0], words, environ);
            _exit(errno);
        }
        return wait_for(pid);
    } else if (!strcmp(how, "clone-parent")) {
        pid_t pid = (pid_t)clone(child_main, stack + sizeof stack, CLONE_PARENT | SIGCHLD, NULL);
        usleep(300000);
        return pid > 0 ? 0 : 1;
    } else if (!strcmp(how, "clone-nosignal")) { /* neither a fork nor a thread */
        return wait_for((pid_t)clone(child_main, stack + sizeof stack, 0, NULL));
    } else if (!strcmp(how, "untraced")) {
        return wait_for((pid_t)clone(child_main, stack + sizeof stack, CLONE_UNTRACED | SIGCHLD, NULL));
    } else if (!strcmp(how, "clone3")) {
        struct clone_args args = {.flags = CLONE_UNTRACED, .exit_signal = SIGCHLD};
        pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);
        if (!pid) child_main(NULL);
        return wait_for(pid);
    } else if (!strcmp(how, "no-argv")) {
        syscall(SYS_execve, words[0], NULL, environ);
    } else if (!strcmp(how, "no-words")) {
        char *none[] = {NULL};
        execve(words[0], none, none);
    } else if (!strcmp(how, "bad-pointer")) {
        execve(words[0], (char **)0x123456789000, environ);
    } else if (!strcmp(how, "bad-path")) {
        syscall(SYS_execve, 0x123456789000, words, environ);
    } else if (!strcmp(how, "unaligned")) { /* pointers that cross a page */
        char *area = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        size_t n = 0;
        while (words[n]) n++;
        char *array = area + 4096 - 5;
        memcpy(array, words, (n + 1) * sizeof *words);
        syscall(SYS_execve, words[0], array, environ);
    } else if (!strcmp(how, "undumpable")) {
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
        execve(words[0], words, environ);
    } else if (!strcmp(how, "secret")) { /* memory that nobody else can read */
        int fd = (int)syscall(447 /* memfd_secret */, 0);
        if (fd < 0 || ftruncate(fd, 4096)) return puts("no memfd_secret"), 0;
        char *hidden = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        strcpy(hidden, words[0]);
        execve(hidden, words, environ);
#ifdef __x86_64__
    } else if (!strcmp(how, "int80")) {
        long result; /* execve is 11 in the 32-bit table; its pointers must be below 4 GiB */
        char *low = mmap((void *)0x10000000, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        strcpy(low + 4096, words[0]);
        uint32_t pointers[2] = {(uint32_t)(uintptr_t)(low + 4096), 0};
        memcpy(low, pointers, sizeof pointers);
        __asm__ volatile("int $0x80" : "=a"(result) : "a"(11), "b"(low + 4096), "c"(low), "d"(0) : "memory");
        errno = (int)-result;
    } else if (!strcmp(how, "x32")) {
        syscall(0x40000000 | 520 /* execve */, words[0], words, environ);
#endif
    } else {
        return 64;
    }
    say("errno");
    return 1;
}
