/* Calls: the way from a process inside to the broker. The guard carries packets and knows who called; what they say is
 * the broker's business.
 *
 * In: connections to the abstract socket `broker` in the sandbox's own network namespace; REPLY, CALL_NEXT, HANG_UP.
 * Out: CALL, CALL_DATA, CALL_TAKEN, CALL_GONE.
 *
 * INVARIANT: memory is bounded, and nothing here waits. A client's next packet is read only when the broker has asked
 * for it and its socket has room; of the broker's replies at most one is kept for each call
 * (test_a_client_that_floods_is_read_no_further_than_asked, test_a_stopped_client_holds_up_nobody_else). */
#include "guard.h"

#include <sys/socket.h>
#include <sys/un.h>

enum { OPEN_CALLS = 16, BACKLOG = 16, CONNECTIONS = CALLS_POLLED - 3 };
static const char ADDRESS[] = "\0broker";

static struct call {
    int fd;
    uint64_t arrival;           /* 0: this place is free */
    uint32_t id;                /* 0: not announced yet; it waits until fewer than OPEN_CALLS are open */
    uint32_t pid, spawn, scope; /* of the process that connected, when it did */
    bool wanted, over;          /* its next packet; nothing more than the kept reply */
    uint8_t *reply;             /* what the client's socket had no room for */
    size_t size;
} calls[CONNECTIONS];
static uint64_t polled[CONNECTIONS]; /* `arrival` of the connection that was polled in this place */
static uint64_t arrivals;
static unsigned connected, open_calls;
static uint32_t next_id;
static int listener = -1;

int calls_listen(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    socklen_t size = offsetof(struct sockaddr_un, sun_path) + sizeof ADDRESS - 1;
    int on = 1;
    memcpy(address.sun_path, ADDRESS, sizeof ADDRESS - 1);
    listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    /* Every packet then comes with its sender's credentials, and the end of a connection without: it tells an empty
     * packet from the end. */
    if (listener < 0 || setsockopt(listener, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) ||
        bind(listener, (struct sockaddr *)&address, size) || listen(listener, BACKLOG))
        return -errno;
    return 0;
}

static struct call *find(uint32_t id) {
    for (struct call *c = calls; c < calls + CONNECTIONS; c++)
        if (c->arrival && c->id == id) return c;
    return NULL;
}

static void tell(uint16_t type, const struct call *c) {
    message_begin(type, 0, c->id);
    message_send(-1);
}

/* Every call that was announced ends here, once. */
static void gone(struct call *c) {
    close(c->fd);
    free(c->reply);
    connected--;
    if (c->id) {
        open_calls--;
        tell(CALL_GONE, c);
    }
    *c = (struct call){0};
}

void calls_connected(int fd) {
    struct ucred peer = {0};
    socklen_t size = sizeof peer;
    int on = 1;
    struct task *t = NULL;
    if (!getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size)) t = task_find(peer.pid);
    struct call *c = calls;
    while (c < calls + CONNECTIONS && c->arrival) c++;
    if (!t || !t->spawn || c == calls + CONNECTIONS || setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on)) {
        close(fd);
        return;
    }
    *c = (struct call){.fd = fd, .arrival = ++arrivals, .pid = (uint32_t)peer.pid, .spawn = t->spawn->id, .scope = t->scope};
    connected++;
}

static bool accept_one(void) {
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) calls_connected(fd);
    return fd >= 0;
}

/* Before a process goes or becomes another program. INVARIANT: a call is ascribed to whoever connected, and not to
 * what has its number later (test_a_call_belongs_to_the_program_that_connected). */
void calls_settle(void) {
    struct pollfd on = {.fd = listener, .events = POLLIN}; /* accept would make a socket first, and then find nobody */
    while (listener >= 0 && poll(&on, 1, 0) == 1 && accept_one()) {}
}

static void announce(void) {
    struct call *first = NULL;
    for (struct call *c = calls; c < calls + CONNECTIONS; c++)
        if (c->arrival && !c->id && (!first || c->arrival < first->arrival)) first = c;
    if (!first) return;
    do next_id++;
    while (!next_id || find(next_id));
    first->id = next_id;
    first->wanted = true;
    open_calls++;
    message_begin(CALL, 0, first->id);
    put_u32(first->pid);
    put_u32(first->spawn);
    put_u32(first->scope);
    message_send(-1);
}

static void read_packet(struct call *c) {
    static uint8_t packet[MAX_CALL_PACKET + 1];
    struct iovec part = {packet, sizeof packet};
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(struct ucred))]; /* none for descriptors: the kernel closes them */
    } control;
    struct msghdr h = {.msg_iov = &part, .msg_iovlen = 1};
    h.msg_control = control.room;
    h.msg_controllen = sizeof control.room;
    ssize_t n = recvmsg(c->fd, &h, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n < 0 || n > MAX_CALL_PACKET || h.msg_flags & MSG_TRUNC || !CMSG_FIRSTHDR(&h)) return gone(c);
    c->wanted = false;
    message_begin(CALL_DATA, 0, c->id);
    put_blob(packet, (size_t)n);
    message_send(-1);
}

/* Whether the client's socket took it; no: it is kept. */
static bool deliver(struct call *c, const uint8_t *data, size_t size) {
    ssize_t n = send(c->fd, data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (n < 0) {
        gone(c);
        return true;
    }
    tell(CALL_TAKEN, c);
    if (c->over) gone(c);
    return true;
}

static void redeliver(struct call *c) {
    uint8_t *reply = c->reply;
    c->reply = NULL;
    if (deliver(c, reply, c->size)) free(reply);
    else c->reply = reply;
}

unsigned calls_watch(struct pollfd on[CALLS_POLLED]) {
    on[0].events = POLLIN | (link_full ? POLLOUT : 0);
    if (listener < 0 && !connected) return 2;
    on[2] = (struct pollfd){.fd = connected < OPEN_CALLS && !link_full ? listener : -1, .events = POLLIN};
    if (!connected) return 3;
    for (unsigned i = 0; i < CONNECTIONS; i++) {
        const struct call *c = calls + i;
        short in = c->wanted && !c->over && !link_full ? POLLIN : 0, out = c->reply ? POLLOUT : 0;
        on[3 + i] = (struct pollfd){.fd = c->arrival ? c->fd : -1, .events = in | out};
        polled[i] = c->arrival;
    }
    return CALLS_POLLED;
}

void calls_step(const struct pollfd on[CALLS_POLLED], unsigned count) {
    if (on[0].revents & POLLOUT) link_full = false;
    for (unsigned i = 0; i + 3 < count; i++) {
        struct call *c = calls + i;
        short happened = on[3 + i].revents;
        if (!happened || c->arrival != polled[i]) continue;
        if (happened & POLLOUT && c->reply) redeliver(c);
        else if (happened & (POLLHUP | POLLERR)) gone(c); /* whoever is gone wants nothing any more */
        else if (happened & POLLIN && c->wanted && link_has_room()) read_packet(c);
    }
    if (count > 2 && on[2].revents) accept_one();
    while (open_calls < OPEN_CALLS && connected > open_calls && link_has_room()) announce();
}

/* The broker's messages. A number that is not known is a client that has just gone. */

void calls_reply(uint32_t id, const uint8_t *data, size_t size) {
    struct call *c = find(id);
    if (!c) return;
    if (c->reply || c->over) guard_exit(70); /* it did not wait for CALL_TAKEN: one is kept, and no more */
    if (deliver(c, data, size)) return;
    c->reply = must_alloc(size);
    c->size = size;
    memcpy(c->reply, data, size);
}

void calls_next(uint32_t id) {
    struct call *c = find(id);
    if (c) c->wanted = true;
}

/* Asked twice it does not wait for the client to take the last reply. */
void calls_hang_up(uint32_t id) {
    struct call *c = find(id);
    if (!c) return;
    if (!c->reply || c->over) gone(c);
    else c->over = true;
}
