/* Labels for attempts to get out (L0 refuses them): the sandbox has a loopback and no route, and a program that tries to
 * connect elsewhere fails silently. Here it fails in the same way, and the broker hears who wanted to go where.
 *
 * In: a task stopped before connect(2), or sendto(2) with an address. Out: the call goes on, or ENETUNREACH and a note.
 * It is a label only: the address lies in memory that another thread may change after this look, and gains nothing by it,
 * because the kernel knows no way out. What is no internet address, or cannot be read, goes on to the kernel. */
#include "guard.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/xattr.h>

enum { RECENT = 64, PROGRAM_SHOWN = 400, EVERY_MS = 1000 };

/* What was noted lately. A slot is simply replaced: too many notes are better than one that is missing. */
static struct {
    char text[512];
    uint64_t at;
} recent[RECENT];

bool egress_is_attempt(uint64_t nr) { return nr == SYS_connect || nr == SYS_sendto; }

/* 127/8; 0.0.0.0, which the kernel takes for this host */
static bool stays_inside(const uint8_t ip[4]) { return ip[0] == 127 || !(ip[0] | ip[1] | ip[2] | ip[3]); }

bool destination_read(const uint8_t *address, size_t size, struct destination *d) {
    static const uint8_t mapped[12] = {[10] = 0xff, 0xff};
    struct sockaddr_in v4;
    struct sockaddr_in6 v6 = {0};
    uint16_t family;
    char text[INET6_ADDRSTRLEN] = "";
    if (size < sizeof family) return false;
    memcpy(&family, address, sizeof family);
    if (family == AF_INET && size >= sizeof v4) {
        memcpy(&v4, address, sizeof v4);
    } else if (family == AF_INET6 && size >= offsetof(struct sockaddr_in6, sin6_scope_id)) { /* SIN6_LEN_RFC2133 */
        memcpy(&v6, address, size < sizeof v6 ? size : sizeof v6);
        const uint8_t *ip = v6.sin6_addr.s6_addr;
        if (memcmp(ip, mapped, sizeof mapped)) {
            d->outside = !IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr) && !IN6_IS_ADDR_UNSPECIFIED(&v6.sin6_addr);
            inet_ntop(AF_INET6, ip, text, sizeof text);
            snprintf(d->text, sizeof d->text, "[%s]:%u", text, ntohs(v6.sin6_port));
            return true;
        }
        memcpy(&v4.sin_addr, ip + 12, sizeof v4.sin_addr);
        v4.sin_port = v6.sin6_port;
    } else {
        return false;
    }
    d->outside = !stays_inside((const uint8_t *)&v4.sin_addr);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof text);
    snprintf(d->text, sizeof d->text, "%s:%u", text, ntohs(v4.sin_port));
    return true;
}

/* By the name that the kernel gives the socket's file (TCP, TCPv6, UDP …). Not by a copy of the descriptor: the last one
 * to close a socket may have to wait (SO_LINGER). */
static bool is_udp(struct task *t, int socket) {
    char path[48], name[32];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", t->tid, socket);
    ssize_t n = getxattr(path, "system.sockprotoname", name, sizeof name);
    return n > 3 && !memcmp(name, "UDP", 3);
}

static bool is_new(const char *text) {
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (const char *c = text; *c; c++) hash = (hash ^ (unsigned char)*c) * 16777619u;
    __typeof__(*recent) *slot = &recent[(hash ^ hash >> 16) % RECENT];
    uint64_t now = now_ms();
    if (!strcmp(slot->text, text) && now - slot->at < EVERY_MS) return false;
    strcpy(slot->text, text);
    slot->at = now;
    return true;
}

static void refuse(struct task *t, int socket, const struct destination *d) {
    char link[32], program[PATH_MAX], text[sizeof recent->text];
    snprintf(link, sizeof link, "/proc/%d/exe", t->tid);
    ssize_t n = readlink(link, program, sizeof program - 1);
    if (n < 0) n = 0;
    program[n] = 0;
    const char *shown = n > PROGRAM_SHOWN ? program + n - PROGRAM_SHOWN : program; /* the end tells more */
    snprintf(text, sizeof text, "%.*s %s %s", PROGRAM_SHOWN, n ? shown : "?", d->text, is_udp(t, socket) ? "udp" : "tcp");
    if (is_new(text)) note(NOTE_NET_REFUSED, (uint32_t)task_tgid(t), task_spawn_id(t), "%s", text);
    tracee_refuse(t->tid, ENETUNREACH);
}

/* Word by word, which is cheaper than opening its memory: every connection waits for it. What follows the address
 * (a scope) is not read. */
static bool read_address(struct task *t, uint64_t at, size_t size, struct destination *d) {
    uint64_t words[3]; /* 16 bytes of IPv4, 24 of IPv6; a shorter one is none */
    size_t n = size < sizeof words ? size / sizeof *words : 3;
    for (size_t i = 0; i < n; i++)
        if (syscall(SYS_ptrace, PTRACE_PEEKDATA, t->tid, at + i * sizeof *words, &words[i])) return false;
    return destination_read((const uint8_t *)words, n * sizeof *words, d);
}

void egress_attempt(struct task *t, uint64_t nr, const uint64_t args[6]) {
    bool sends = nr == SYS_sendto;
    uint64_t at = args[sends ? 4 : 1];
    int length = (int)args[sends ? 5 : 2]; /* too short, or longer than any address: EINVAL, from the kernel */
    bool possible = length >= (int)sizeof(struct sockaddr_in) && length <= (int)sizeof(struct sockaddr_storage);
    struct destination d;
    if (possible && read_address(t, at, (size_t)length, &d) && d.outside) refuse(t, (int)args[0], &d);
    else tracee_resume(t->tid, 0);
}
