/* flood same|different TIMES SIZE: try to start python3 that often, with an argument of SIZE bytes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc != 4) return 64;
    int times = atoi(argv[2]);
    size_t size = (size_t)atol(argv[3]);
    char *padding = calloc(1, size + 1), number[32], *none[] = {NULL};
    memset(padding, 'a', size);
    for (int i = 0; i < times; i++) {
        snprintf(number, sizeof number, "--data=%d", strcmp(argv[1], "same") ? i : 0);
        execve("/usr/bin/python3", (char *[]){"python3", number, padding, NULL}, none);
    }
    return 0;
}
