/* What the kernel makes of a script's first line (fs/binfmt_script.c, Linux 5.0 and later).
 *
 * In: the first 256 bytes of a file, zero-filled. Out: interpreter and argument. A wrong answer here can
 * only end in a kill, never in an unapproved program: the result is compared with what really started. */
#include "guard.h"

static bool blank(char c) { return c == ' ' || c == '\t'; }

static size_t skip_blanks(const char *head, size_t at, size_t end) {
    while (at < end && blank(head[at])) at++;
    return at;
}

/* The first blank or NUL in [at, end), or end. */
static size_t word_end(const char *head, size_t at, size_t end) {
    while (at < end && head[at] && !blank(head[at])) at++;
    return at;
}

static void copy(char *out, const char *head, size_t from, size_t to) {
    size_t n = strnlen(head + from, to - from);
    memcpy(out, head + from, n);
    out[n] = 0;
}

bool shebang_parse(const char head[MAX_SHEBANG], struct shebang *s) {
    if (head[0] != '#' || head[1] != '!') return false;
    const char *newline = memchr(head, '\n', MAX_SHEBANG);
    size_t end;
    if (newline) {
        end = (size_t)(newline - head);
    } else {
        end = MAX_SHEBANG - 1;
        size_t name = skip_blanks(head, 2, end + 1);
        /* No end of the name in sight: it may be cut off, and the kernel refuses it. */
        if (name > end || word_end(head, name, end + 1) > end) return false;
    }
    while (end > 2 && blank(head[end - 1])) end--;
    size_t name = skip_blanks(head, 2, end);
    if (name >= end) return false;
    size_t separator = word_end(head, name, end);
    copy(s->name, head, name, separator);
    copy(s->line, head, name, end);
    s->argument[0] = 0;
    s->has_argument = false;
    if (separator < end && head[separator]) {
        copy(s->argument, head, skip_blanks(head, separator, end), end);
        s->has_argument = true;
    }
    return true;
}
