/* A libFuzzer program on what the guard reads from others: packets, first lines of scripts, names, paths, the memory of
 * a process (here its own, through the same /proc/PID/mem), addresses, and what callers and the broker do to calls, in any
 * order.
 * Built without main.c. */
#include "guard.h"

#include <stdio.h>
#include <sys/socket.h>

struct guard guard = {.socket = -1};
void guard_exit(int code) {
    fprintf(stderr, "guard_exit(%d)\n", code);
    abort();
}

static void must(bool fact) {
    if (!fact) abort();
}

static void fuzz_message(const uint8_t *data, size_t size) {
    struct message m;
    if (!message_parse(data, size, &m)) return;
    if (m.type == SETUP) must(m.setup.rules.n % 2 == 0 && !m.setup.rules.v[m.setup.rules.n]);
    if (m.type == SPAWN) must(m.id && m.spawn.argv.n && !m.spawn.argv.v[m.spawn.argv.n]);
    if (m.type == REPLY) must(m.id && m.reply_size <= size && m.reply >= data && m.reply + m.reply_size == data + size);
    if (m.type == SETUP) must(m.setup.views.n <= MAX_VIEWS && (!m.setup.views.n || m.setup.views.v[0][0] == '/'));
    if (m.type == SETUP) must(m.setup.port_count <= MAX_PORTS);
    for (uint32_t i = 0; i < m.setup.port_count; i++)
        for (uint32_t j = 0; j <= i; j++) must(m.setup.ports[i] && (i == j || m.setup.ports[i] != m.setup.ports[j]));
    if (m.type == ANSWER) must(m.answer.error && m.answer.error < 4096);
    message_free(&m);
}

static void fuzz_shebang(const uint8_t *data, size_t size) {
    char head[MAX_SHEBANG] = {0};
    struct shebang s;
    memcpy(head, data, size < sizeof head ? size : sizeof head);
    if (!shebang_parse(head, &s)) return;
    must(!memcmp(head, "#!", 2) && strlen(s.name) < MAX_SHEBANG && !strpbrk(s.name, " \t\n"));
    must(!strncmp(s.line, s.name, strlen(s.name)));
    if (s.has_argument) must(!strchr(s.argument, '\n') && s.argument[0] != ' ' && s.argument[0] != '\t');
}

static void fuzz_names(const char *text, size_t size) {
    static char *none[] = {NULL};
    char *roots[] = {"/work", "/work/deep/", "/", NULL}, *names[] = {".git", "*.pem", ".env*", "*cron*", NULL};
    struct strings empty = {0, none}, r = {2, roots}, n = {4, names};
    size_t half = strlen(text) / 2;
    char pattern[64];
    snprintf(pattern, sizeof pattern, "%s", text + half);
    name_matches(text, half, pattern);
    path_watched(text, &r, &empty, &n);
    must(path_below("/work/x", text) == path_below("/work/x", text) && size >= half);
}

static struct task self(void) { return (struct task){.tid = getpid(), .tgid = getpid()}; }

static void fuzz_path(const char *text) {
    static char out[MAX_PATH_TEXT];
    struct task t = self();
    struct stat st;
    if (strstr(text, "fd/0")) return; /* libFuzzer's own standard input may be anything */
    int found = path_locate(&t, AT_FDCWD, text, text[0] & 1, out, &st);
    if (!found || found == -ENOENT) must(strlen(out) < MAX_PATH_TEXT);
    int fd = path_open(&t, AT_FDCWD, text, true);
    if (fd >= 0) close(fd);
}

/* Treat the input as an array of pointers, most of them wild, some into the input itself. */
static void fuzz_memory(const uint8_t *data, size_t size) {
    static char out[4096];
    struct memory m;
    size_t used;
    uint32_t count;
    uint64_t pointers[64] = {0};
    for (size_t i = 0; i < 63 && (i + 1) * 2 <= size; i++)
        pointers[i] = data[2 * i] & 1 ? (uint64_t)(uintptr_t)(data + data[2 * i + 1] % size) : (uint64_t)data[2 * i + 1] << (data[2 * i] >> 2);
    must(!memory_open(&m, getpid()));
    int error = memory_words(&m, (uint64_t)(uintptr_t)pointers, out, data[0] * 16u, &used, &count);
    must(used <= data[0] * 16u && error <= 0);
    memory_words(&m, pointers[0], out, sizeof out, &used, &count);
    memory_close(&m);
}

static void fuzz_destination(const uint8_t *data, size_t size) {
    struct destination d;
    memset(&d, 'x', sizeof d);
    if (!destination_read(data, size, &d)) return;
    must(size >= 16 && memchr(d.text, 0, sizeof d.text) && strrchr(d.text, ':'));
    /* By the text, which was made in another way. */
    bool loopback = !strncmp(d.text, "127.", 4) || !strncmp(d.text, "0.0.0.0:", 8) || !strncmp(d.text, "[::1]:", 6) ||
                    !strncmp(d.text, "[::]:", 5);
    must(d.outside == !loopback);
}

/* Calls: a broker that keeps to the protocol, and callers that do as they like. */
enum { CLIENTS = 24, NUMBERS = 1 << 12 };
static int link_end = -1, clients[CLIENTS];
static struct { bool open, wanted, replied, over; } known[NUMBERS]; /* what the broker has been told, by number */
static uint32_t last_call;
static unsigned open_now;

static void hear(void) {
    static uint8_t packet[MAX_PACKET];
    for (ssize_t n; (n = recv(link_end, packet, sizeof packet, MSG_DONTWAIT)) > 0;) {
        uint16_t type;
        uint32_t id, size;
        must(n >= 8);
        memcpy(&type, packet, 2);
        memcpy(&id, packet + 4, 4);
        bool open = known[id % NUMBERS].open;
        if (type == CALL) {
            must(n == 20 && !open && id && ++open_now <= 16);
            known[id % NUMBERS].open = known[id % NUMBERS].wanted = true;
            last_call = id;
        } else if (type == CALL_DATA) {
            memcpy(&size, packet + 8, 4);
            must(open && known[id % NUMBERS].wanted && size <= MAX_CALL_PACKET && (size_t)n == 12 + size);
            known[id % NUMBERS].wanted = false;
        } else if (type == CALL_TAKEN) {
            must(n == 8 && open && known[id % NUMBERS].replied);
            known[id % NUMBERS].replied = false;
        } else {
            must(type == CALL_GONE && n == 8 && open);
            memset(&known[id % NUMBERS], 0, sizeof *known);
            open_now--;
        }
    }
}

void link_wait(void) { hear(); }

static void turn(void) {
    static struct pollfd on[CALLS_POLLED];
    on[0].fd = guard.socket;
    on[1].fd = -1;
    unsigned count = calls_watch(on);
    poll(on, count, 0);
    calls_step(on, count);
}

static void client_acts(unsigned what, unsigned which, size_t size) {
    static const uint8_t bytes[255 * 259];
    static uint8_t room[MAX_CALL_PACKET];
    int *c = &clients[which % CLIENTS], pair[2];
    if (what == 0 && *c < 0) {
        must(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair));
        *c = pair[0];
        calls_connected(pair[1]);
    } else if (*c < 0) return;
    else if (what == 1) send(*c, bytes, size, MSG_NOSIGNAL);
    else if (what == 2) recv(*c, room, sizeof room, 0);
    else if (what == 3) shutdown(*c, (int)(size % 3));
    else if (what == 4) {
        close(*c);
        *c = -1;
    }
}

static void broker_acts(unsigned what, uint32_t back, size_t size) {
    static const uint8_t bytes[MAX_CALL_PACKET];
    uint32_t id = last_call - back % 32;
    if (!id) return;
    hear();
    if (what == 5 && !known[id % NUMBERS].replied && !known[id % NUMBERS].over) {
        known[id % NUMBERS].replied = known[id % NUMBERS].open;
        calls_reply(id, bytes, size < sizeof bytes ? size : sizeof bytes);
    } else if (what == 6 && known[id % NUMBERS].open) {
        known[id % NUMBERS].wanted = true;
        calls_next(id);
    } else if (what == 7) {
        known[id % NUMBERS].over = known[id % NUMBERS].open;
        calls_hang_up(id);
    }
}

static void fuzz_calls(const uint8_t *data, size_t size) {
    if (link_end < 0) {
        int pair[2];
        must(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair));
        guard.socket = pair[0];
        link_end = pair[1];
        task_new(getpid(), spawn_new(1, getpid(), -1, -1), 7)->tgid = getpid();
        memset(clients, -1, sizeof clients);
    }
    for (size_t i = 0; i + 2 < size; i += 3) {
        unsigned what = data[i] % 8;
        if (what < 5) client_acts(what, data[i + 1], data[i + 2] * 259u);
        else broker_acts(what, data[i + 1], data[i + 2] * 257u);
        if (data[i] & 8) turn();
        if (data[i] & 16) hear();
    }
    for (unsigned i = 0; i < CLIENTS; i++) client_acts(4, i, 0);
    for (unsigned i = 0; i < 8; i++) turn(), hear();
    must(!open_now); /* whoever called is gone, and the broker knows */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) return 0;
    char *text = must_alloc(size);
    memcpy(text, data + 1, size - 1); /* ends in a NUL */
    switch (data[0] % 7) {
    case 0: fuzz_message(data + 1, size - 1); break;
    case 1: fuzz_shebang(data + 1, size - 1); break;
    case 2: fuzz_names(text, size); break;
    case 3: fuzz_path(text); break;
    case 4: fuzz_memory(data + 1, size - 1); break;
    case 5: fuzz_calls(data + 1, size - 1); break;
    case 6: fuzz_destination(data + 1, size - 1); break;
    }
    free(text);
    return 0;
}
