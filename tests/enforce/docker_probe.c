/* Process 1 for the tests of the Docker engine alone: connects as the guard does, says so, and then runs each
 * packet as a shell text and answers with its exit code and output. What it shows is what the container holds
 * by itself: neither Landlock nor the exec gate is there.
 *
 * A file `exit-at-once` or `never-connect` in the task's folder makes it do that. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static char packet[1 << 16];

int main(int argc, char **argv)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (argc != 3 || strcmp(argv[1], "--connect") != 0 || strlen(argv[2]) >= sizeof address.sun_path)
        return 2;
    if (access("/run/broker/exit-at-once", F_OK) == 0)
        return 9;
    if (access("/run/broker/never-connect", F_OK) == 0)
        for (;;)
            pause();
    strcpy(address.sun_path, argv[2]);
    int link = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (link < 0 || connect(link, (struct sockaddr *)&address, sizeof address) != 0)
        return 3;
    if (send(link, "HELLO", 5, MSG_NOSIGNAL) != 5)
        return 4;
    ssize_t length;
    while ((length = recv(link, packet, sizeof packet - 1, 0)) > 0) {
        packet[length] = 0;
        FILE *shell = popen(packet, "r");
        if (shell == NULL)
            return 5;
        size_t got = fread(packet + 4, 1, sizeof packet - 4, shell);
        int status = pclose(shell);
        int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        memcpy(packet, &code, 4);
        if (send(link, packet, got + 4, MSG_NOSIGNAL) < 0)
            return 6;
    }
    return 0;
}
