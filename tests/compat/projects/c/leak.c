#include <stdlib.h>

int main(void)
{
    char *volatile block = malloc(64); /* lost on purpose */
    block[0] = 1;
    block = NULL;
    return 0;
}
