/* Let calls on the files below one directory fail by a plan (LD_PRELOAD).
 *
 * The plan is a file that the harness and every process map: rules, which the harness may change at any time. A rule
 * selects calls by their kind and by the path relative to the root, lets some of them pass, and then fails some. Every
 * other call goes on to the next library: libc, or tests/power/recorder.c, so that what fails can be recorded, too.
 *
 * Environment: FAULTS_ROOT, an absolute path without symbolic links; FAULTS_PLAN, the file.
 * Layout of the plan: tests/faults/plan.py.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fnmatch.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>

#include "../power/paths.h"

enum { OPEN = 1, CREATE = 2, READ = 4, WRITE = 8, SYNC = 16, TRUNCATE = 32, RENAME = 64, LINK = 128, UNLINK = 256,
       MKDIR = 512, LIST = 1024 };
enum { FAIL = 1, PART, SHORT, FLIP, DELAY, KILL };

struct rule {
    uint32_t calls, action;
    int32_t error;
    uint32_t delay_us;
    uint64_t skip, times; /* pass this many calls, then fail this many */
    uint64_t seen, hit;
    char pattern[208]; /* of fnmatch(3), in which * also matches / */
};

struct plan {
    uint64_t count;
    char pad[248];
    struct rule rules[64];
};

static struct plan *plan;

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("FAULTS_PLAN"), *directory = getenv("FAULTS_ROOT");
    if (!path || !directory) return;
    int fd = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
    void *mapped = mmap(NULL, sizeof *plan, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (fd < 0 || mapped == MAP_FAILED || set_root(directory) < 0) {
        dprintf(2, "faults: no plan %s\n", path);
        _exit(127);
    }
    plan = mapped;
}

#define NEXT(name, ...) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))(__VA_ARGS__)

/* Return true if any rule is about such calls: without one, no path is looked up. */
static int planned(unsigned call) {
    if (!plan) return 0;
    for (uint64_t each = 0; each < plan->count; each++)
        if (plan->rules[each].calls & call) return 1;
    return 0;
}

/* Return the rule by which this call fails, or NULL. A delay is over when this returns. */
static struct rule *due(unsigned call, const char *path) {
    const char *name = path + root_length + (path[root_length] == '/');
    for (uint64_t each = 0; each < plan->count; each++) {
        struct rule *rule = &plan->rules[each];
        if (!(rule->calls & call) || fnmatch(rule->pattern, name, 0)) continue;
        uint64_t number = __atomic_fetch_add(&rule->seen, 1, __ATOMIC_SEQ_CST);
        if (number < rule->skip || number - rule->skip >= rule->times) continue;
        __atomic_fetch_add(&rule->hit, 1, __ATOMIC_SEQ_CST);
        if (rule->action != DELAY) return rule;
        struct timespec time = {rule->delay_us / 1000000, rule->delay_us % 1000000 * 1000};
        nanosleep(&time, NULL);
    }
    return NULL;
}

static struct rule *due_at(unsigned call, int at, const char *name) {
    char path[PATH_MAX];
    return planned(call) && path_at(at, name, path) ? due(call, path) : NULL;
}

static struct rule *due_on(unsigned call, int fd) {
    char path[PATH_MAX];
    struct stat facts;
    return planned(call) && path_of(fd, &facts, path) ? due(call, path) : NULL;
}

/* Fail a call that has no parts. */
static int failed(const struct rule *rule) {
    if (rule->action == KILL) kill(getpid(), SIGKILL);
    errno = rule->error;
    return -1;
}

/* ---- opening ---- */

static mode_t mode_from(int flags, va_list rest) {
    return flags & (O_CREAT | (O_TMPFILE & ~O_DIRECTORY)) ? va_arg(rest, unsigned) : 0;
}

int openat(int at, const char *name, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = mode_from(flags, rest);
    va_end(rest);
    struct rule *rule = due_at(flags & O_CREAT ? CREATE : OPEN, at, name);
    return rule ? failed(rule) : NEXT(openat, at, name, flags, mode);
}

int open(const char *name, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = mode_from(flags, rest);
    va_end(rest);
    return openat(AT_FDCWD, name, flags, mode);
}

int open64(const char *name, int flags, ...) __attribute__((alias("open")));
int openat64(int at, const char *name, int flags, ...) __attribute__((alias("openat")));

DIR *opendir(const char *name) {
    struct rule *rule = due_at(LIST, AT_FDCWD, name);
    if (!rule) return NEXT(opendir, name);
    failed(rule);
    return NULL;
}

/* ---- reading ---- */

static void flip(const struct iovec *pieces, ssize_t got) {
    ssize_t at = got / 2;
    for (; got > 0; at -= pieces++->iov_len)
        if (at < (ssize_t)pieces->iov_len) {
            ((char *)pieces->iov_base)[at] ^= 4;
            return;
        }
}

static ssize_t was_read(const struct rule *rule, const struct iovec *pieces, ssize_t got) {
    if (rule->action == FLIP) flip(pieces, got);
    return rule->action == SHORT && got > 1 ? got / 2 : got;
}

static int reads(const struct rule *rule) { return rule->action == FLIP || rule->action == SHORT; }

ssize_t read(int fd, void *data, size_t size) {
    struct rule *rule = due_on(READ, fd);
    if (rule && !reads(rule)) return failed(rule);
    if (rule && rule->action == SHORT && size > 1) return NEXT(read, fd, data, size / 2);
    ssize_t got = NEXT(read, fd, data, size);
    struct iovec piece = {data, size};
    return rule ? was_read(rule, &piece, got) : got;
}

ssize_t pread64(int fd, void *data, size_t size, off64_t offset) {
    struct rule *rule = due_on(READ, fd);
    if (rule && !reads(rule)) return failed(rule);
    ssize_t got = NEXT(pread64, fd, data, size, offset);
    struct iovec piece = {data, size};
    return rule ? was_read(rule, &piece, got) : got;
}

ssize_t pread(int fd, void *data, size_t size, off_t offset) __attribute__((alias("pread64")));

/* ---- writing ---- */

/* Write the first half of the pieces at an offset; return its length. */
static ssize_t half(int fd, const struct iovec *pieces, int count, off64_t offset) {
    ssize_t size = 0, written = 0;
    for (int each = 0; each < count; each++) size += pieces[each].iov_len;
    for (ssize_t left = size / 2; left > 0; pieces++) {
        ssize_t some = (ssize_t)pieces->iov_len < left ? (ssize_t)pieces->iov_len : left;
        ssize_t done = offset < 0 ? NEXT(write, fd, pieces->iov_base, some)
                                  : NEXT(pwrite64, fd, pieces->iov_base, some, offset + written);
        if (done <= 0) break;
        written += done;
        left -= done;
        if (done < some) break;
    }
    return written;
}

static ssize_t written(const struct rule *rule, int fd, const struct iovec *pieces, int count, off64_t offset) {
    if (rule->action == FAIL) return failed(rule);
    ssize_t some = half(fd, pieces, count, offset);
    return rule->action == SHORT && some > 0 ? some : failed(rule);
}

ssize_t write(int fd, const void *data, size_t size) {
    struct rule *rule = due_on(WRITE, fd);
    struct iovec piece = {(void *)data, size};
    return rule ? written(rule, fd, &piece, 1, -1) : NEXT(write, fd, data, size);
}

ssize_t writev(int fd, const struct iovec *pieces, int count) {
    struct rule *rule = due_on(WRITE, fd);
    return rule ? written(rule, fd, pieces, count, -1) : NEXT(writev, fd, pieces, count);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
    struct rule *rule = due_on(WRITE, fd);
    struct iovec piece = {(void *)data, size};
    return rule ? written(rule, fd, &piece, 1, offset) : NEXT(pwrite64, fd, data, size, offset);
}

ssize_t pwritev64(int fd, const struct iovec *pieces, int count, off64_t offset) {
    struct rule *rule = due_on(WRITE, fd);
    return rule ? written(rule, fd, pieces, count, offset) : NEXT(pwritev64, fd, pieces, count, offset);
}

ssize_t pwritev64v2(int fd, const struct iovec *pieces, int count, off64_t offset, int flags) {
    struct rule *rule = due_on(WRITE, fd);
    return rule ? written(rule, fd, pieces, count, offset) : NEXT(pwritev64v2, fd, pieces, count, offset, flags);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) __attribute__((alias("pwrite64")));
ssize_t pwritev(int fd, const struct iovec *pieces, int count, off_t offset) __attribute__((alias("pwritev64")));
ssize_t pwritev2(int fd, const struct iovec *pieces, int count, off_t offset, int flags)
    __attribute__((alias("pwritev64v2")));

int ftruncate64(int fd, off64_t length) {
    struct rule *rule = due_on(TRUNCATE, fd);
    return rule ? failed(rule) : NEXT(ftruncate64, fd, length);
}

int ftruncate(int fd, off_t length) __attribute__((alias("ftruncate64")));

/* ---- syncing: one that fails was not done ---- */

int fsync(int fd) {
    struct rule *rule = due_on(SYNC, fd);
    return rule ? failed(rule) : NEXT(fsync, fd);
}

int fdatasync(int fd) {
    struct rule *rule = due_on(SYNC, fd);
    return rule ? failed(rule) : NEXT(fdatasync, fd);
}

/* ---- names ---- */

int renameat2(int from, const char *source, int to, const char *target, unsigned flags) {
    struct rule *rule = due_at(RENAME, to, target);
    return rule ? failed(rule) : NEXT(renameat2, from, source, to, target, flags);
}

int rename(const char *source, const char *target) { return renameat2(AT_FDCWD, source, AT_FDCWD, target, 0); }
int renameat(int from, const char *source, int to, const char *target) { return renameat2(from, source, to, target, 0); }

int linkat(int from, const char *source, int to, const char *target, int flags) {
    struct rule *rule = due_at(LINK, to, target);
    return rule ? failed(rule) : NEXT(linkat, from, source, to, target, flags);
}

int link(const char *source, const char *target) { return linkat(AT_FDCWD, source, AT_FDCWD, target, 0); }

int unlinkat(int at, const char *name, int flags) {
    struct rule *rule = due_at(UNLINK, at, name);
    return rule ? failed(rule) : NEXT(unlinkat, at, name, flags);
}

int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }

int mkdirat(int at, const char *name, mode_t mode) {
    struct rule *rule = due_at(MKDIR, at, name);
    return rule ? failed(rule) : NEXT(mkdirat, at, name, mode);
}

int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }
