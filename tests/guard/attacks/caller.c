/* caller MODE [NUMBER…]: a client of the guard's calls that does not behave. What it says goes to standard output. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static char bytes[256 * 1024];

static int call(int flags) {
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "\0broker"};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | flags, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, offsetof(struct sockaddr_un, sun_path) + 7)) {
        printf("connect: %s\n", strerrorname_np(errno));
        exit(1);
    }
    return fd;
}

static void say(const char *text, long number) {
    printf("%s %ld\n", text, number);
    fflush(stdout);
}

/* Every packet, until the other side ends. */
static void read_all(int fd) {
    char packet[65536];
    long packets = 0, sum = 0;
    ssize_t n;
    while ((n = recv(fd, packet, sizeof packet, 0)) > 0 || (n < 0 && errno == ECONNRESET))
        if (n > 0) packets++, sum += n;
    say("packets", packets);
    say("bytes", sum);
}

static void stay(void) {
    for (;;) pause();
}

static void send_with_descriptors(int fd) {
    int pair[2], copies[16];
    char end;
    if (pipe(pair)) exit(1);
    for (int i = 0; i < 16; i++) copies[i] = pair[1];
    struct iovec part = {"sc", 2};
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof copies)];
    } control = {0};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room};
    control.header.cmsg_level = SOL_SOCKET;
    control.header.cmsg_type = SCM_RIGHTS;
    control.header.cmsg_len = CMSG_LEN(sizeof copies);
    memcpy(CMSG_DATA(&control.header), copies, sizeof copies);
    say("sent", sendmsg(fd, &m, 0));
    close(pair[1]);
    say("left open", read(pair[0], &end, 1)); /* waits for as long as anybody holds the other end */
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    long number = argc > 2 ? atol(argv[2]) : 0;
    memset(bytes, 'x', sizeof bytes);
    if (!strcmp(mode, "mute")) { /* connects, and no more */
        call(0);
        say("connected", 1);
        stay();
    } else if (!strcmp(mode, "many")) { /* from as many processes */
        for (long i = 0; i < number; i++)
            if (!fork()) {
                call(0);
                stay();
            }
        say("started", number);
        stay();
    } else if (!strcmp(mode, "flood")) { /* until its socket takes no more */
        int fd = call(SOCK_NONBLOCK);
        long packets = 0;
        while (send(fd, bytes, 60000, MSG_NOSIGNAL) > 0) packets++;
        say("packets", packets);
        stay();
    } else if (!strcmp(mode, "send")) { /* packets of these sizes */
        int fd = call(0), size = 400000;
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
        for (int i = 2; i < argc; i++) send(fd, bytes, (size_t)atol(argv[i]), MSG_NOSIGNAL);
        read_all(fd);
    } else if (!strcmp(mode, "half")) { /* no more from here, but it would listen */
        int fd = call(0);
        send(fd, "s", 1, 0);
        shutdown(fd, SHUT_WR);
        read_all(fd);
    } else if (!strcmp(mode, "deaf")) { /* reads nothing until SIGUSR1 */
        sigset_t wait;
        int fd = call(0), got;
        sigemptyset(&wait);
        sigaddset(&wait, SIGUSR1);
        sigprocmask(SIG_BLOCK, &wait, NULL);
        say("deaf", 1);
        sigwait(&wait, &got);
        read_all(fd);
    } else if (!strcmp(mode, "descriptors")) {
        send_with_descriptors(call(0));
    } else if (!strcmp(mode, "become") && argc > 2) { /* another program, the connection in its hands */
        send(call(0), "s", 1, 0);
        execv(argv[2], argv + 2);
    } else if (!strcmp(mode, "leave")) { /* the connection in a child's hands, and dies */
        int fd = call(0);
        send(fd, "s", 1, 0);
        if (fork()) return 0;
        stay();
    } else if (!strcmp(mode, "bind")) { /* the guard's own name */
        struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "\0broker"};
        int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
        if (!bind(fd, (struct sockaddr *)&address, offsetof(struct sockaddr_un, sun_path) + 7)) puts("bound");
        else puts(strerrorname_np(errno));
    }
    return 0;
}
