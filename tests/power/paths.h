/* Paths of the files below one directory, as the interposed calls of recorder.c and tests/faults/failing.c name them. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static char root[PATH_MAX];
static size_t root_length;
static dev_t root_device;

/* Set the directory: an absolute path without symbolic links. Return -1 if there is none of that name. */
static int set_root(const char *directory) {
    struct stat facts;
    if (strlen(directory) >= sizeof root || stat(directory, &facts) < 0) return -1;
    root_device = facts.st_dev;
    root_length = strlen(directory);
    memcpy(root, directory, root_length + 1);
    return 0;
}

static int below(const char *path) {
    return !strncmp(path, root, root_length) && (path[root_length] == '/' || !path[root_length]);
}

/* Return the absolute path of `name`, without "." and "..", if it is below the root; else NULL. */
static const char *path_at(int at, const char *name, char *out) {
    char raw[2 * PATH_MAX + 32], link[64];
    if (!name) return NULL;
    size_t length = 0;
    if (name[0] != '/') {
        ssize_t got;
        if (at == AT_FDCWD) {
            got = syscall(SYS_getcwd, raw, PATH_MAX) > 0 ? (ssize_t)strlen(raw) : -1;
        } else {
            snprintf(link, sizeof link, "/proc/self/fd/%d", at);
            got = syscall(SYS_readlinkat, AT_FDCWD, link, raw, PATH_MAX);
        }
        if (got <= 0) return NULL;
        length = got;
    }
    size_t named = strlen(name);
    if (named >= PATH_MAX) return NULL;
    raw[length] = '/';
    memcpy(raw + length + 1, name, named + 1);
    size_t put = 0;
    for (char *piece = raw; *piece;) {
        while (*piece == '/') piece++;
        char *end = piece;
        while (*end && *end != '/') end++;
        size_t size = end - piece;
        if (size == 2 && piece[0] == '.' && piece[1] == '.') {
            while (put && out[--put] != '/');
        } else if (size && !(size == 1 && piece[0] == '.')) {
            if (put + size + 2 >= PATH_MAX) return NULL;
            out[put++] = '/';
            memcpy(out + put, piece, size);
            put += size;
        }
        piece = end;
    }
    out[put] = 0;
    return below(out) ? out : NULL;
}

/* Return true if descriptor `fd` is a file or directory below the root; store its state in `facts`, its path in `path`
 * (PATH_MAX bytes). */
static int path_of(int fd, struct stat *facts, char *path) {
    if (fd < 0) return 0;
    int saved = errno, found = 0;
    if (!fstat(fd, facts) && facts->st_dev == root_device && (S_ISREG(facts->st_mode) || S_ISDIR(facts->st_mode))) {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t got = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
        if (got > 0) {
            path[got] = 0;
            found = below(path);
        }
    }
    errno = saved;
    return found;
}
