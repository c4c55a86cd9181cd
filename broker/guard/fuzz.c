/* A libFuzzer program on what the guard reads from others: packets, first lines of scripts, names, paths, and
 * the memory of a process (here its own, through the same /proc/PID/mem). Built without main.c. */
#include "guard.h"

#include <stdio.h>

struct guard guard = {.socket = -1};
void guard_exit(int code) {
    fprintf(stderr, "guard_exit(%d)\n", code);
    abort();
}

static void must(bool fact) {
    if (!fact) abort();
}

static void fuzz_message(const uint8_t *data, size_t size) {
    struct message m;
    if (!message_parse(data, size, &m)) return;
    if (m.type == SETUP) must(m.setup.rules.n % 2 == 0 && !m.setup.rules.v[m.setup.rules.n]);
    if (m.type == SPAWN) must(m.id && m.spawn.argv.n && !m.spawn.argv.v[m.spawn.argv.n]);
    if (m.type == ANSWER) must(m.answer.error && m.answer.error < 4096);
    message_free(&m);
}

static void fuzz_shebang(const uint8_t *data, size_t size) {
    char head[MAX_SHEBANG] = {0};
    struct shebang s;
    memcpy(head, data, size < sizeof head ? size : sizeof head);
    if (!shebang_parse(head, &s)) return;
    must(!memcmp(head, "#!", 2) && strlen(s.name) < MAX_SHEBANG && !strpbrk(s.name, " \t\n"));
    must(!strncmp(s.line, s.name, strlen(s.name)));
    if (s.has_argument) must(!strchr(s.argument, '\n') && s.argument[0] != ' ' && s.argument[0] != '\t');
}

static void fuzz_names(const char *text, size_t size) {
    static char *none[] = {NULL};
    char *roots[] = {"/work", "/work/deep/", "/", NULL}, *names[] = {".git", "*.pem", ".env*", "*cron*", NULL};
    struct strings empty = {0, none}, r = {2, roots}, n = {4, names};
    size_t half = strlen(text) / 2;
    char pattern[64];
    snprintf(pattern, sizeof pattern, "%s", text + half);
    name_matches(text, half, pattern);
    path_watched(text, &r, &empty, &n);
    must(path_below("/work/x", text) == path_below("/work/x", text) && size >= half);
}

static struct task self(void) { return (struct task){.tid = getpid(), .tgid = getpid()}; }

static void fuzz_path(const char *text) {
    static char out[MAX_PATH_TEXT];
    struct task t = self();
    struct stat st;
    if (strstr(text, "fd/0")) return; /* libFuzzer's own standard input may be anything */
    int found = path_locate(&t, AT_FDCWD, text, text[0] & 1, out, &st);
    if (!found || found == -ENOENT) must(strlen(out) < MAX_PATH_TEXT);
    int fd = path_open(&t, AT_FDCWD, text, true);
    if (fd >= 0) close(fd);
}

/* Treat the input as an array of pointers, most of them wild, some into the input itself. */
static void fuzz_memory(const uint8_t *data, size_t size) {
    static char out[4096];
    struct memory m;
    size_t used;
    uint32_t count;
    uint64_t pointers[64] = {0};
    for (size_t i = 0; i < 63 && (i + 1) * 2 <= size; i++)
        pointers[i] = data[2 * i] & 1 ? (uint64_t)(uintptr_t)(data + data[2 * i + 1] % size) : (uint64_t)data[2 * i + 1] << (data[2 * i] >> 2);
    must(!memory_open(&m, getpid()));
    int error = memory_words(&m, (uint64_t)(uintptr_t)pointers, out, data[0] * 16u, &used, &count);
    must(used <= data[0] * 16u && error <= 0);
    memory_words(&m, pointers[0], out, sizeof out, &used, &count);
    memory_close(&m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) return 0;
    char *text = must_alloc(size);
    memcpy(text, data + 1, size - 1); /* ends in a NUL */
    switch (data[0] % 5) {
    case 0: fuzz_message(data + 1, size - 1); break;
    case 1: fuzz_shebang(data + 1, size - 1); break;
    case 2: fuzz_names(text, size); break;
    case 3: fuzz_path(text); break;
    case 4: fuzz_memory(data + 1, size - 1); break;
    }
    free(text);
    return 0;
}
