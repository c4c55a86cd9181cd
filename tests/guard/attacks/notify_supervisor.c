/* notify_supervisor PROGRAM ARGS…: a minimal supervisor of the kind that does not work. It gets a seccomp
 * notification for each execve, reads the arguments, refuses those with "evil" in them, and otherwise says
 * "continue". The kernel reads the arguments again after that, and nobody looks. Kept so that everybody can see
 * that the attack in race.c is real. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int says_evil(pid_t pid, uint64_t argv) {
    char path[64], text[16] = "";
    uint64_t word = 0;
    snprintf(path, sizeof path, "/proc/%d/mem", pid);
    int fd = open(path, O_RDONLY);
    if (pread(fd, &word, 8, (off_t)argv + 8) != 8 || (word && pread(fd, text, 5, (off_t)word) != 5)) text[0] = 0;
    close(fd);
    return !strcmp(text, "evil");
}

int main(int argc, char **argv) {
    int pair[2];
    if (argc < 2 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) return 64;
    pid_t child = fork();
    if (!child) {
        struct sock_filter code[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_execve, 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        struct sock_fprog program = {4, code};
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        int fd = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
        if (fd < 0 || write(pair[1], &fd, sizeof fd) != sizeof fd) _exit(70);
        char go;
        if (read(pair[1], &go, 1) != 1) _exit(70);
        close(fd);
        execv(argv[1], argv + 1);
        _exit(71);
    }
    int theirs;
    if (read(pair[0], &theirs, sizeof theirs) != sizeof theirs) return 70;
    int process = (int)syscall(SYS_pidfd_open, child, 0);
    int listener = (int)syscall(SYS_pidfd_getfd, process, theirs, 0);
    if (listener < 0 || write(pair[0], "g", 1) != 1) return 70;
    for (;;) {
        struct seccomp_notif n = {0};
        struct pollfd p = {.fd = listener, .events = POLLIN};
        if (poll(&p, 1, -1) < 0 || p.revents & POLLHUP) break;
        if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &n)) continue;
        struct seccomp_notif_resp r = {.id = n.id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
        if (says_evil((pid_t)n.pid, n.data.args[1])) r.flags = 0, r.error = -EACCES;
        else usleep(200); /* asking somebody takes time */
        ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &r);
    }
    int status;
    waitpid(child, &status, 0);
    return WEXITSTATUS(status);
}
