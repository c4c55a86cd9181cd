#include <limits.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    int large = INT_MAX;
    (void)argv;
    large += argc; /* wrong on purpose */
    printf("%d\n", large);
    return 0;
}
