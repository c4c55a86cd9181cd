/* race MODE TRIES: start /bin/echo with an argument that says "good" when it is looked at first, and "evil"
 * when the kernel copies it. Whoever trusts the first look lets "evil" run. MODE is who does the flip:
 *   thread   another thread            vm      a process that shares the memory (CLONE_VM)
 *   shared   a process that shares one mapping      vfork   the child of a vfork flips its parent's memory
 *   env      a thread, on the environment           path    a thread, on the path itself */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char *flipped;
static const char *good, *evil;
static volatile int go;
static long delay;

static long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

static int flip(void *unused) {
    (void)unused;
    while (!go) sched_yield();
    for (long end = now() + delay; now() < end;) sched_yield();
    memcpy(flipped, evil, strlen(evil) + 1);
    return 0;
}

static void *flip_thread(void *unused) {
    flip(unused);
    return NULL;
}

static char stack[65536];

int main(int argc, char **argv) {
    const char *mode = argv[1];
    int tries = atoi(argv[2]);
    if (argc > 3) return 64;
    good = "good", evil = "evil";
    if (!strcmp(mode, "env")) good = "LD_X=good", evil = "LD_X=evil";
    if (!strcmp(mode, "path")) good = "/bin/echo", evil = "/bin/date";
    srandom(1);
    setvbuf(stdout, NULL, _IONBF, 0);
    for (int i = 0; i < tries; i++) {
        long wait_for = random() % 600000;
        pid_t child = fork();
        if (!child) {
            delay = wait_for;
            flipped = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
            strcpy(flipped, good);
            char *words[] = {"/bin/echo", flipped, NULL}, *env[] = {"LD_X=1", NULL};
            char *path = "/bin/echo";
            if (!strcmp(mode, "env")) words[0] = "/usr/bin/env", words[1] = NULL, env[0] = flipped, path = "/usr/bin/env";
            if (!strcmp(mode, "path")) words[1] = NULL, path = flipped;
            pthread_t t;
            if (!strcmp(mode, "vm")) {
                clone(flip, stack + sizeof stack, CLONE_VM | SIGCHLD, NULL);
            } else if (!strcmp(mode, "shared")) {
                pid_t parent = getpid();
                (void)parent;
                static volatile int *ready;
                ready = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
                if (!fork()) {
                    while (!*ready) sched_yield();
                    go = 1;
                    flip(NULL);
                    _exit(0);
                }
                *ready = 1;
            } else if (!strcmp(mode, "vfork")) {
                /* The vfork child execs while a thread of the parent, in the same memory, flips. */
                pthread_create(&t, NULL, flip_thread, NULL);
                pid_t inner = vfork();
                if (!inner) {
                    go = 1;
                    execve(path, words, env);
                    _exit(9);
                }
                int status;
                waitpid(inner, &status, 0);
                pthread_join(t, NULL);
                _exit(WIFSIGNALED(status) ? 8 : WEXITSTATUS(status));
            } else {
                pthread_create(&t, NULL, flip_thread, NULL);
            }
            go = 1;
            execve(path, words, env);
            _exit(9);
        }
        int status;
        waitpid(child, &status, 0);
        if (WIFSIGNALED(status) || (WIFEXITED(status) && WEXITSTATUS(status) == 8)) puts("killed");
        else if (WIFEXITED(status) && WEXITSTATUS(status) == 9) puts("refused");
    }
    return 0;
}
