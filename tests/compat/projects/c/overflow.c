#include <stdlib.h>

int main(int argc, char **argv)
{
    volatile char *block = malloc(8);
    (void)argv;
    block[8 * argc] = 1; /* wrong on purpose */
    free((void *)block);
    return 0;
}
