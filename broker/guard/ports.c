/* Ports on the sandbox's own loopback. The guard listens, because the broker is not in there; whoever connects is handed
 * to the broker as a descriptor, and what is said over it never passes through here.
 *
 * In: SETUP's ports. Out: CONNECTED, with the connected socket.
 *
 * INVARIANT: nothing here waits, and nothing is kept: what the broker has no room for stays in the kernel's backlog
 * (test_connections_wait_in_the_backlog_while_the_broker_does_not_read). */
#include "guard.h"

#include <netinet/in.h>
#include <sys/socket.h>

enum { BACKLOG = 64 };

static struct {
    int fd;
    uint16_t port;
} listeners[MAX_PORTS];
static unsigned count;

/* Before anything of the workload's runs, which could otherwise be there first. */
int ports_listen(const uint16_t *ports, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(ports[i])};
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) ||
            bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, BACKLOG))
            return -errno;
        listeners[count].fd = fd;
        listeners[count++].port = ports[i];
    }
    return 0;
}

unsigned ports_watch(struct pollfd on[MAX_PORTS]) {
    for (unsigned i = 0; i < count; i++)
        on[i] = (struct pollfd){.fd = link_full ? -1 : listeners[i].fd, .events = POLLIN};
    return count;
}

/* One at a time, so that no port keeps another waiting. */
void ports_step(const struct pollfd on[MAX_PORTS]) {
    for (unsigned i = 0; i < count; i++) {
        if (!on[i].revents || !link_has_room()) continue;
        int fd = accept4(listeners[i].fd, NULL, NULL, SOCK_CLOEXEC); /* blocking, as a new socket is */
        if (fd < 0) continue;
        message_begin(CONNECTED, 0, listeners[i].port);
        message_offer(fd); /* if it was not taken, closing is all that is left to do */
        close(fd);
    }
}
