/* The client: what this program is when it is started as `broker` inside a sandbox.
 *
 * It connects to the guard, sends its folder and its words, and is a pump from then on: the broker says what to write
 * where, when to read the standard input, and how to exit. It decides nothing, holds no secret, and allocates nothing.
 * Killing it hangs up, which cancels the call. */
#include "guard.h"

#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>

enum {
    EXIT_USAGE = 64, EXIT_NO_BROKER = 69, EXIT_BROKEN = 70, EXIT_OUTPUT = 74, EXIT_PIPE = 128 + SIGPIPE,
    ALL_WORDS = 192 * 1024,
};
static const char ADDRESS[] = "\0broker";
static char packet[MAX_CALL_PACKET + 1];
static size_t filled, sent;
static int broker;

bool write_all(int fd, const void *bytes, size_t size) {
    for (const char *at = bytes; size;) {
        ssize_t n = write(fd, at, size);
        if (n < 0 && errno == EAGAIN) { /* somebody who shares it made it non-blocking */
            struct pollfd on = {.fd = fd, .events = POLLOUT};
            poll(&on, 1, -1);
        } else if (n < 0 && errno != EINTR) return false;
        if (n > 0) at += n, size -= (size_t)n;
    }
    return true;
}

/* Names come from anywhere: what would repaint a terminal is shown as \xNN. */
int client_says(int code, const char *about, const char *reason) {
    char line[2 * PATH_MAX];
    size_t n = (size_t)snprintf(line, sizeof line, "broker: ");
    for (; *about && n < sizeof line - 512; about++) {
        bool plain = (unsigned char)*about >= ' ' && *about != 127;
        n += (size_t)snprintf(line + n, 5, plain ? "%c" : "\\x%02x", (unsigned char)*about);
    }
    n += (size_t)snprintf(line + n, 500, "%s\n", reason);
    write_all(2, line, n);
    return code;
}

static bool send_packet(size_t size) {
    ssize_t n;
    while ((n = send(broker, packet, size, MSG_NOSIGNAL)) < 0 && errno == EINTR) {}
    return n >= 0;
}

/* Bytes of the request, in as many packets as they need. */
static bool send_words(const char *bytes, size_t size) {
    for (sent += size; size;) {
        size_t room = MAX_CALL_PACKET - filled, n = size < room ? size : room;
        memcpy(packet + filled, bytes, n);
        filled += n, bytes += n, size -= n;
        if (filled < MAX_CALL_PACKET) break;
        if (!send_packet(filled)) return false;
        filled = 1;
    }
    return true;
}

/* False: the broker has hung up already; why is in what it sent. */
static bool send_request(char **argv) {
    char folder[PATH_MAX];
    if (!getcwd(folder, sizeof folder)) *folder = 0; /* it was deleted: unknown */
    packet[0] = 'c';
    filled = 1;
    if (!send_words(folder, strlen(folder) + 1)) return false;
    for (char **word = argv; *word; word++)
        if (!send_words(*word, strlen(*word) + 1)) return false;
    if (filled > 1 && !send_packet(filled)) return false;
    packet[0] = 's';
    return send_packet(1);
}

static size_t size_of(char **argv) {
    size_t size = PATH_MAX;
    for (char **word = argv; *word; word++) size += strlen(*word) + 1;
    return size;
}

/* At most a packet of the standard input; none: it has ended, or there is none. */
static bool send_input(void) {
    ssize_t n = read(0, packet + 1, MAX_CALL_PACKET - 1);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return false;
    packet[0] = 'i';
    send_packet(n > 0 ? (size_t)n + 1 : 1); /* a failure shows when the next frame is read */
    return true;
}

/* One frame. Exits when it says so. True: input is asked for. */
static bool obey_frame(size_t size) {
    const char *bytes = packet + 1;
    switch (size ? packet[0] : 0) {
    case 'o':
        if (!write_all(1, bytes, size - 1)) {
            if (errno == EPIPE) _exit(EXIT_PIPE);
            _exit(client_says(EXIT_OUTPUT, "cannot write the output: ", strerror(errno)));
        }
        return false;
    case 'e': write_all(2, bytes, size - 1); return false;
    case 'i': if (size == 1) return true; break;
    case 'x': if (size == 2) _exit((unsigned char)bytes[0]); break;
    }
    _exit(client_says(EXIT_BROKEN, "", "the broker sent what this client does not understand"));
}

static int pump(void) {
    bool asked = false, reset = false;
    for (;;) {
        struct pollfd on[2] = {{.fd = broker, .events = POLLIN}, {.fd = asked ? 0 : -1, .events = POLLIN}};
        if (poll(on, 2, -1) < 0 && errno != EINTR) return EXIT_BROKEN;
        if (on[1].revents && send_input()) asked = false;
        if (!on[0].revents) continue;
        ssize_t n = recv(broker, packet, sizeof packet, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        /* The guard closed while a packet of ours was unread: said once, before what it had sent. */
        if (n < 0 && errno == ECONNRESET && !reset) {
            reset = true;
            continue;
        }
        if (n <= 0) return client_says(EXIT_BROKEN, "", "the broker hung up");
        if (obey_frame((size_t)n)) asked = true;
    }
}

static bool connect_to_guard(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, ADDRESS, sizeof ADDRESS - 1);
    socklen_t size = offsetof(struct sockaddr_un, sun_path) + sizeof ADDRESS - 1;
    broker = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    return broker >= 0 && !connect(broker, (struct sockaddr *)&address, size);
}

/* What was started without a standard input, output or error must not find a file or the broker's socket in their place.
 * Reading and writing this fails. */
static void keep_places(void) {
    int fd;
    do fd = open("/", O_PATH | O_CLOEXEC);
    while (fd >= 0 && fd < 3);
    close(fd);
}

int client_main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN);
    keep_places();
    if (argc > 1 && !strcmp(argv[1], "file")) return client_file(argv + 2);
    if (size_of(argv) > ALL_WORDS) return client_says(EXIT_USAGE, "", "the command line is longer than 188 KiB: pass long text on standard input");
    if (!connect_to_guard())
        return client_says(EXIT_NO_BROKER, "", "this is not a sandbox of broker's, or its broker takes no calls");
    send_request(argv); /* whatever happens, the answer tells */
    return pump();
}
