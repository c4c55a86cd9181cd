/* Packets. In: bytes from the broker, taken apart strictly. Out: packets on the broker's socket.
 *
 * INVARIANT: a packet that does not parse to its last byte changes nothing; the caller exits
 * (test_nonsense_from_the_broker_ends_the_guard, fuzz.c). */
#include "guard.h"

#include <stdarg.h>
#include <stdio.h>
#include <sys/socket.h>

struct reader {
    const uint8_t *at, *end;
    bool bad;
};

void *must_alloc(size_t size) {
    void *memory = calloc(1, size ? size : 1);
    if (!memory) guard_exit(71);
    return memory;
}

static uint64_t get_number(struct reader *r, unsigned size) {
    uint64_t value = 0;
    if ((size_t)(r->end - r->at) < size) {
        r->bad = true;
        r->at = r->end;
        return 0;
    }
    memcpy(&value, r->at, size); /* little-endian on both architectures */
    r->at += size;
    return value;
}

static uint32_t get_u32(struct reader *r) { return (uint32_t)get_number(r, 4); }

static const uint8_t *get_blob(struct reader *r, uint32_t *size) {
    *size = get_u32(r);
    if ((size_t)(r->end - r->at) < *size) {
        r->bad = true;
        *size = 0;
    }
    const uint8_t *start = r->at;
    r->at += *size;
    return start;
}

static char *copy_text(struct reader *r, const uint8_t *bytes, size_t size) {
    char *text = must_alloc(size + 1);
    if (size) memcpy(text, bytes, size);
    if (strlen(text) != size) r->bad = true; /* a NUL inside: the rest would be lost silently */
    return text;
}

static char *get_text(struct reader *r) {
    uint32_t size;
    const uint8_t *bytes = get_blob(r, &size);
    return copy_text(r, bytes, size);
}

static uint32_t get_count(struct reader *r) {
    uint32_t count = get_u32(r);
    if (count > (size_t)(r->end - r->at) / 4) { /* each takes at least its length */
        r->bad = true;
        return 0;
    }
    return count;
}

static struct strings get_list(struct reader *r) {
    struct strings list = {.n = get_count(r)};
    list.v = must_alloc((list.n + 1) * sizeof *list.v);
    for (uint32_t i = 0; i < list.n; i++) list.v[i] = get_text(r);
    return list;
}

/* Landlock rules are `rights\0path`: kept as two strings each. */
static struct strings get_pairs(struct reader *r) {
    uint32_t count = get_count(r);
    struct strings list = {.n = 2 * count, .v = must_alloc((2 * (size_t)count + 1) * sizeof *list.v)};
    for (uint32_t i = 0; i < count; i++) {
        uint32_t size;
        const uint8_t *bytes = get_blob(r, &size);
        const uint8_t *nul = size ? memchr(bytes, 0, size) : NULL;
        if (!nul) r->bad = true;
        size_t first = nul ? (size_t)(nul - bytes) : size;
        list.v[2 * i] = copy_text(r, bytes, first);
        list.v[2 * i + 1] = nul ? copy_text(r, nul + 1, size - first - 1) : must_alloc(1);
    }
    return list;
}

static void free_list(struct strings *list) {
    for (uint32_t i = 0; list->v && i < list->n; i++) free(list->v[i]);
    free(list->v);
}

/* Decimal, as it is usually written, so that a port has one name only. */
static void get_ports(struct reader *r, struct setup *s) {
    struct strings texts = get_list(r);
    if (texts.n > MAX_PORTS) r->bad = true;
    for (uint32_t i = 0; !r->bad && i < texts.n; i++) {
        char again[16];
        unsigned long port = strtoul(texts.v[i], NULL, 10);
        snprintf(again, sizeof again, "%lu", port & 0xffff);
        if (!port || strcmp(texts.v[i], again)) r->bad = true;
        for (uint32_t j = 0; j < i; j++)
            if (s->ports[j] == port) r->bad = true;
        s->ports[s->port_count++] = (uint16_t)port;
    }
    free_list(&texts);
}

static void get_setup(struct reader *r, struct setup *s) {
    s->flags = get_u32(r);
    s->timeout_ms = get_u32(r);
    s->live_limit = get_u32(r);
    s->nofile = get_u32(r);
    s->file_size = get_number(r, 8);
    s->nproc = get_u32(r);
    s->rules = get_pairs(r);
    s->roots = get_list(r);
    s->quiet = get_list(r);
    s->names = get_list(r);
    s->env = get_list(r);
    s->test_exec = get_text(r);
    s->test_write = get_text(r);
    s->views = get_list(r);
    get_ports(r, s);
    if (!s->timeout_ms || s->flags & ~31u || s->views.n > MAX_VIEWS) r->bad = true;
    for (uint32_t i = 0; i < s->views.n; i++)
        if (s->views.v[i][0] != '/') r->bad = true;
}

static void get_spawn(struct reader *r, struct message *m) {
    struct spawn_request *s = &m->spawn;
    s->flags = m->flags;
    s->scope = get_u32(r);
    s->rows = get_u32(r);
    s->columns = get_u32(r);
    s->cwd = get_text(r);
    s->argv = get_list(r);
    s->env = get_list(r);
    if (!m->id || !s->argv.n || s->scope == SCOPE_UNCHANGED) r->bad = true;
}

static void get_answer(struct reader *r, struct message *m) {
    struct answer *a = &m->answer;
    a->flags = m->flags;
    a->verdict = get_u32(r);
    a->scope = get_u32(r);
    a->error = get_u32(r);
    a->note = get_text(r);
    if (a->verdict > 1 || a->error == 0 || a->error > 4095) r->bad = true;
}

bool message_parse(const uint8_t *packet, size_t size, struct message *m) {
    struct reader r = {.at = packet, .end = packet + size};
    memset(m, 0, sizeof *m);
    m->type = (uint16_t)get_number(&r, 2);
    m->flags = (uint16_t)get_number(&r, 2);
    m->id = get_u32(&r);
    uint16_t known_flags = 0;
    switch (r.bad ? 0 : m->type) {
    case SETUP: get_setup(&r, &m->setup); break;
    case SPAWN: known_flags = 3; get_spawn(&r, m); break;
    case ANSWER: known_flags = 3; get_answer(&r, m); break;
    case SIGNAL:
        known_flags = 1;
        m->signal = get_u32(&r);
        if (m->signal < 1 || m->signal > 64) r.bad = true;
        break;
    case KILL: case SHUTDOWN: break;
    case REPLY:
        m->reply = get_blob(&r, &m->reply_size);
        if (!m->id || m->reply_size > MAX_CALL_PACKET) r.bad = true;
        break;
    case CALL_NEXT: case HANG_UP: if (!m->id) r.bad = true; break;
    default: r.bad = true;
    }
    if (!r.bad && r.at == r.end && !(m->flags & ~known_flags)) return true;
    message_free(m);
    return false;
}

void message_free(struct message *m) {
    free_list(&m->setup.rules);
    free_list(&m->setup.roots);
    free_list(&m->setup.quiet);
    free_list(&m->setup.names);
    free_list(&m->setup.env);
    free_list(&m->setup.views);
    free(m->setup.test_exec);
    free(m->setup.test_write);
    free(m->spawn.cwd);
    free_list(&m->spawn.argv);
    free_list(&m->spawn.env);
    free(m->answer.note);
    memset(m, 0, sizeof *m);
}

static uint8_t packet[MAX_PACKET];
static size_t used;

static void put(const void *bytes, size_t size) {
    if (size > sizeof packet - used) guard_exit(70); /* our own limits keep every message below it */
    if (size) memcpy(packet + used, bytes, size);
    used += size;
}

void message_begin(uint16_t type, uint16_t flags, uint32_t id) {
    used = 0;
    put(&type, 2);
    put(&flags, 2);
    put(&id, 4);
}

void put_u32(uint32_t value) { put(&value, 4); }
void put_u64(uint64_t value) { put(&value, 8); }

void put_blob(const void *bytes, size_t size) {
    put_u32((uint32_t)size);
    put(bytes, size);
}

void put_text(const char *text) { put_blob(text, strlen(text)); }

static ssize_t send_once(const int *descriptors, unsigned count) {
    struct iovec part = {.iov_base = packet, .iov_len = used};
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(MAX_VIEWS * sizeof(int))];
    } control = {0};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
    if (count) {
        m.msg_control = control.room;
        m.msg_controllen = CMSG_SPACE(count * sizeof(int));
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(&control.header), descriptors, count * sizeof(int));
    }
    return sendmsg(guard.socket, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void message_send_with(const int *descriptors, unsigned count) {
    /* While the broker does not read, whoever waits for an answer stays stopped. But what the broker sends meanwhile
     * is taken in: its reading thread may be the one that is sending, and the two would wait for each other. */
    while (send_once(descriptors, count) < 0) {
        if (errno == EAGAIN) link_wait();
        else if (errno != EINTR) guard_exit(1); /* the broker is gone */
    }
}

void message_send(int descriptor) { message_send_with(&descriptor, descriptor >= 0); }

/* How many descriptors may be under way is counted for each user of the host (RLIMIT_NOFILE, unix(7)): a process of
 * another sandbox may have used them up, and must not end this one. */
bool message_offer(int descriptor) {
    while (send_once(&descriptor, 1) < 0) {
        if (errno == ETOOMANYREFS) return false;
        if (errno == EAGAIN) link_wait();
        else if (errno != EINTR) guard_exit(1);
    }
    return true;
}

/* If there is none, the socket is polled before anything is read that would have to be passed on. */
bool link_full;

bool link_has_room(void) {
    struct pollfd on = {.fd = guard.socket, .events = POLLOUT};
    link_full = poll(&on, 1, 0) != 1 || !(on.revents & POLLOUT);
    return !link_full;
}

void note(enum note kind, uint32_t pid, uint32_t spawn, const char *format, ...) {
    char text[512];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    message_begin(NOTE, 0, 0);
    put_u32(kind);
    put_u32(pid);
    put_u32(spawn);
    put_text(text);
    message_send(-1);
}
