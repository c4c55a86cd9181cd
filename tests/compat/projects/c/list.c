#include <stdlib.h>

#include "list.h"

int sum_of_squares(int count)
{
    int *squares = malloc(sizeof(int) * (size_t)count);
    int sum = 0;
    if (!squares)
        return -1;
    for (int i = 0; i < count; i++)
        squares[i] = i * i;
    for (int i = 0; i < count; i++)
        sum += squares[i];
    free(squares);
    return sum;
}
