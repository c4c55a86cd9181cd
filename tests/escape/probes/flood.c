/* flood same|different TIMES SIZE: try to start curl that often, with an argument of SIZE bytes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc != 4) return 64;
    int times = atoi(argv[2]);
    size_t size = (size_t)atol(argv[3]);
    char *padding = calloc(1, size + 1), number[32], url[] = "http://192.0.2.1/", *none[] = {NULL};
    memset(padding, 'a', size);
    for (int i = 0; i < times; i++) {
        snprintf(number, sizeof number, "--data=%d", strcmp(argv[1], "same") ? i : 0);
        char *words[] = {"curl", number, padding, url, NULL};
        execve("/usr/bin/env", (char *[]){"env", "curl", url, number, padding, NULL}, none);
        (void)words;
    }
    return 0;
}
