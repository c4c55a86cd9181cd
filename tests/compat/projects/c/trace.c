#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>

/* What strace and gdb begin with. */
int main(void)
{
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0) {
        puts("traced");
        return 0;
    }
    printf("not traced: %s\n", strerror(errno));
    return 1;
}
