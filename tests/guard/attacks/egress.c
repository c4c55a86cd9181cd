/* Attempts to connect, one for each word: prints the name of each errno, or `ok`. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

enum { PORT = 443, CLOSED = 9, ROUNDS = 2000 };
static struct sockaddr_in v4;
static struct sockaddr_in6 v6;

static int outcome(long result) { return result < 0 ? errno : 0; }

static void to4(const char *address, int port) {
    v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, address, &v4.sin_addr);
}

static void to6(const char *address, int port) {
    v6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(port)};
    inet_pton(AF_INET6, address, &v6.sin6_addr);
}

/* The call itself: libc must not have an opinion. */
static int connects(int fd, const void *address, long size) { return outcome(syscall(SYS_connect, fd, address, size)); }
static int tcp(int family) { return socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0); }
static int udp(int family) { return socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0); }
static int connects4(int fd) { return connects(fd, &v4, sizeof v4); }
static int connects6(int fd) { return connects(fd, &v6, sizeof v6); }

static void *in_thread(void *got) {
    *(int *)got = connects4(tcp(AF_INET));
    return NULL;
}

static void *flips(void *stop) {
    while (!__atomic_load_n((int *)stop, __ATOMIC_RELAXED))
        __atomic_store_n(&v4.sin_addr.s_addr, v4.sin_addr.s_addr ^ htonl(0x7f000001u ^ 0xc0000201u), __ATOMIC_RELAXED);
    return NULL;
}

/* Between 127.0.0.1 and 192.0.2.1. */
static void race(void) {
    int stop = 0, refused = 0, unreachable = 0, other = 0;
    pthread_t thread;
    to4("127.0.0.1", CLOSED);
    pthread_create(&thread, NULL, flips, &stop);
    for (int i = 0; i < ROUNDS; i++) {
        int fd = tcp(AF_INET), error = connects4(fd);
        if (error == ECONNREFUSED) refused++;
        else if (error == ENETUNREACH) unreachable++;
        else other = error ? error : -1;
        close(fd);
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    pthread_join(thread, NULL);
    printf("ECONNREFUSED=%d ENETUNREACH=%d", refused, unreachable);
    if (other) printf(" %s=1", other < 0 ? "ok" : strerrorname_np(other));
    printf("\n");
}

static void trace_everything(void) {
    struct sock_filter all[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_connect, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE | 77),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof all / sizeof *all, all};
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter)) exit(1);
}

static int attempt(const char *what) {
    struct sockaddr_un file = {.sun_family = AF_UNIX, .sun_path = "/tmp/nobody"};
    char large[256] = {0};
    to4("192.0.2.1", PORT);
    to6("2001:db8::1", PORT);
#define IS(name) if (!strcmp(what, name))
    IS("tcp4") return connects4(tcp(AF_INET));
    IS("udp4") return connects4(udp(AF_INET));
    IS("tcp6") return connects6(tcp(AF_INET6));
    IS("udp6") return connects6(udp(AF_INET6));
    IS("mapped") return to6("::ffff:192.0.2.1", PORT), connects6(tcp(AF_INET6));
    IS("sendto4") return outcome(sendto(udp(AF_INET), "x", 1, 0, (struct sockaddr *)&v4, sizeof v4));
    IS("sendto6") return outcome(sendto(udp(AF_INET6), "x", 1, 0, (struct sockaddr *)&v6, sizeof v6));
    IS("short6") return connects(tcp(AF_INET6), &v6, 24); /* without its scope: RFC 2133 */
    IS("long4") return memcpy(large, &v4, sizeof v4), connects(tcp(AF_INET), large, 128);
    IS("thread") {
        pthread_t thread;
        int got = -1;
        pthread_create(&thread, NULL, in_thread, &got);
        pthread_join(thread, NULL);
        return got;
    }
    IS("loopback4") return to4("127.1.2.3", CLOSED), connects4(tcp(AF_INET));
    IS("loopback6") return to6("::1", CLOSED), connects6(tcp(AF_INET6));
    IS("any4") return to4("0.0.0.0", CLOSED), connects4(tcp(AF_INET));
    IS("any6") return to6("::", CLOSED), connects6(tcp(AF_INET6));
    IS("mapped-loopback") return to6("::ffff:127.0.0.1", CLOSED), connects6(tcp(AF_INET6));
    IS("unix") return connects(socket(AF_UNIX, SOCK_STREAM, 0), &file, sizeof file);
    IS("unspec") return v4.sin_family = AF_UNSPEC, connects4(udp(AF_INET));
    IS("null") return connects(tcp(AF_INET), NULL, sizeof v4);
    IS("wild") return connects(tcp(AF_INET), (void *)0xffff800000000000u, sizeof v4);
    IS("end-of-page") {
        long page = sysconf(_SC_PAGESIZE);
        char *two = mmap(NULL, 2 * (size_t)page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        munmap(two + page, (size_t)page);
        memcpy(two + page - 8, &v4, 8);
        return connects(tcp(AF_INET), two + page - 8, sizeof v4);
    }
    IS("negative") return connects(tcp(AF_INET), &v4, -1);
    IS("empty") return connects(tcp(AF_INET), &v4, 0);
    IS("huge") return memcpy(large, &v4, sizeof v4), connects(tcp(AF_INET), large, 129);
    IS("short4") return connects(tcp(AF_INET), &v4, 8);
    IS("no-socket") return to4("127.0.0.1", CLOSED), connects4(99);
    IS("send") return outcome(sendto(tcp(AF_INET), "x", 1, MSG_NOSIGNAL, NULL, 0));
    IS("undumpable") return prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), connects4(tcp(AF_INET));
    IS("own-filter") return trace_everything(), connects4(tcp(AF_INET));
    return -1;
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "race")) {
            race();
            continue;
        }
        int error = attempt(argv[i]);
        printf("%s\n", error < 0 ? "?" : error ? strerrorname_np(error) : "ok");
    }
}
