#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "list.h"

static void *work(void *result)
{
    *(int *)result = sum_of_squares(1000);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t thread;
    int result = 0, status = 0;
    if (argc < 2)
        return 3;
    pthread_create(&thread, NULL, work, &result);
    pthread_join(thread, NULL);
    printf("%d %d\n", sum_of_squares(atoi(argv[1])), result);
    fflush(stdout);
    if (fork() == 0)
        execlp("sh", "sh", "-c", "echo from a child; exit 9", (char *)NULL);
    wait(&status);
    printf("%d\n", WEXITSTATUS(status));
    return 0;
}
