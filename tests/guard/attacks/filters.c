/* filters HOW PROGRAM…: a workload that installs a seccomp filter of its own and tries to get an exec past the guard.
 *   trace     RET_TRACE with other data on execve      trace-read  RET_TRACE on getppid: must not confuse the guard
 *   listener  a listener that could say "continue"     allow       RET_ALLOW        errno  RET_ERRNO on getppid */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static long install(unsigned nr, unsigned action, unsigned flags) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, action),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {4, code};
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
}

int main(int argc, char **argv) {
    if (argc < 3) return 64;
    const char *how = argv[1];
    long got = 0;
    if (!strcmp(how, "trace")) got = install(SYS_execve, SECCOMP_RET_TRACE | 2, 0);
    else if (!strcmp(how, "trace-read")) got = install(SYS_getppid, SECCOMP_RET_TRACE | 1, 0);
    else if (!strcmp(how, "listener")) got = install(SYS_execve, SECCOMP_RET_USER_NOTIF, SECCOMP_FILTER_FLAG_NEW_LISTENER);
    else if (!strcmp(how, "allow")) got = install(SYS_execve, SECCOMP_RET_ALLOW, 0);
    else if (!strcmp(how, "errno")) got = install(SYS_getppid, SECCOMP_RET_ERRNO | 42, 0);
    else if (!strcmp(how, "errno-exec")) got = install(SYS_execve, SECCOMP_RET_ERRNO | 42, 0);
    printf("install %s\n", got < 0 ? strerrorname_np(errno) : "ok");
    errno = 0;
    long parent = syscall(SYS_getppid);
    printf("getppid %s\n", parent < 0 ? strerrorname_np(errno) : "ok");
    fflush(stdout);
    execv(argv[2], argv + 2);
    printf("exec %s\n", strerrorname_np(errno));
    return 1;
}
