/* Record every change to the files below one directory, for replay as crash images (LD_PRELOAD).
 *
 * The journal is a sparse file, mapped by every recorded process: a header with a lock shared between the processes, then
 * records. An operation and its record are one step under that lock, so the journal's order is the order of the changes.
 * A sync runs outside of the lock; its record has the journal's offset at its beginning, because only earlier writes are
 * durable after it. Files are identified by inode number, introduced by a CREATE or MKDIR record; so descriptors may be
 * duplicated, inherited and passed on without a table here.
 *
 * What cannot be recorded (a shared writable mapping, a stdio stream, a rename from elsewhere) becomes a TROUBLE record,
 * which fails the recording. Calls that bypass libc are not recorded; if there were any, replay and directory would differ.
 *
 * Environment: POWER_ROOT, an absolute path without symbolic links; POWER_JOURNAL, a file that power_prepare() made.
 * Layout of records: tests/power/journal.py.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "paths.h"

#define MAGIC 0x4c525750u /* "PWRL" */
#define HEADER_BYTES 4096
#define COPY_BYTES (1 << 20)

enum { CREATE = 1, MKDIR, WRITE, TRUNCATE, SYNC, SYNC_ALL, RENAME, LINK, UNLINK, RMDIR, TROUBLE };

struct header {
    uint64_t next;     /* offset of the next record; written last, so records before it are complete */
    uint64_t overflow; /* number of records dropped for lack of space */
    pthread_mutex_t lock;
};

struct record {
    uint32_t magic, operation;
    uint64_t size; /* of the whole record, padded to 8 */
    uint64_t time_ns;
    uint64_t inode;
    uint64_t number; /* WRITE: offset; TRUNCATE: length; SYNC, SYNC_ALL: the journal's offset at its beginning */
    uint32_t pid, first, second, pad; /* lengths of the paths */
    uint64_t data;
};

static struct header *journal;
static uint64_t journal_bytes;

/* ---- the journal ---- */

static void lock(void) {
    if (pthread_mutex_lock(&journal->lock) == EOWNERDEAD) pthread_mutex_consistent(&journal->lock);
}

static void unlock(void) { pthread_mutex_unlock(&journal->lock); }

static char *begin(int operation, uint64_t inode, uint64_t number, const char *first, const char *second, uint64_t data) {
    struct record record = {.magic = MAGIC, .operation = operation};
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    record.time_ns = (uint64_t)now.tv_sec * 1000000000u + now.tv_nsec;
    record.inode = inode;
    record.number = number;
    record.pid = getpid();
    record.first = first ? strlen(first) : 0;
    record.second = second ? strlen(second) : 0;
    record.data = data;
    record.size = (sizeof record + record.first + record.second + data + 7) & ~7ull;
    if (journal->next + record.size > journal_bytes) {
        journal->overflow++;
        return NULL;
    }
    char *at = (char *)journal + journal->next;
    memcpy(at, &record, sizeof record);
    at += sizeof record;
    if (first) memcpy(at, first, record.first);
    if (second) memcpy(at + record.first, second, record.second);
    return at + record.first + record.second;
}

static void commit(char *at, uint64_t data) {
    if (at) journal->next = ((uint64_t)(at - (char *)journal) + data + 7) & ~7ull;
}

static void note(int operation, uint64_t inode, uint64_t number, const char *first, const char *second) {
    commit(begin(operation, inode, number, first, second, 0), 0);
}

static void trouble(const char *what, const char *path) {
    lock();
    note(TROUBLE, 0, 0, what, path ? path : "");
    unlock();
}

/* Create a journal of `bytes` bytes. Called by the harness before it starts a process. */
int power_prepare(const char *path, uint64_t bytes) {
    int fd = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || syscall(SYS_ftruncate, fd, bytes) < 0) return -1;
    struct header *header = mmap(NULL, HEADER_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (header == MAP_FAILED) return -1;
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&header->lock, &attributes);
    header->next = HEADER_BYTES;
    syscall(SYS_munmap, header, HEADER_BYTES);
    return 0;
}

static struct header *held;

/* Block changes by recorded processes until power_release(), so that a process killed meanwhile leaves none unrecorded.
 * Called by the harness. */
int power_hold(const char *path) {
    int fd = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0) return -1;
    held = mmap(NULL, HEADER_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (held == MAP_FAILED) return -1;
    if (pthread_mutex_lock(&held->lock) == EOWNERDEAD) pthread_mutex_consistent(&held->lock);
    return 0;
}

void power_release(void) {
    pthread_mutex_unlock(&held->lock);
    syscall(SYS_munmap, held, HEADER_BYTES);
}

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("POWER_JOURNAL"), *directory = getenv("POWER_ROOT");
    if (!path || !directory) return;
    struct stat facts;
    int fd = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0 || fstat(fd, &facts) < 0) goto failed;
    journal_bytes = facts.st_size;
    /* The seventh argument is on the stack: an int would leave its upper half as it was. */
    void *mapped = (void *)syscall(SYS_mmap, NULL, journal_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)0);
    syscall(SYS_close, fd);
    if (mapped == MAP_FAILED || set_root(directory) < 0) goto failed;
    journal = mapped;
    return;
failed:
    dprintf(2, "power recorder: cannot record to %s\n", path);
    _exit(127);
}

/* ---- which files are recorded ---- */

/* Return the absolute path of `name` if it is recorded; else NULL. */
static const char *resolve(int at, const char *name, char *out) { return journal ? path_at(at, name, out) : NULL; }

/* Return true if descriptor `fd` is a recorded file or directory; store its state in `facts`. */
static int recorded(int fd, struct stat *facts) {
    char path[PATH_MAX];
    return journal && path_of(fd, facts, path);
}

static uint64_t inode_of(const char *path) {
    struct stat facts;
    int saved = errno;
    uint64_t found = fstatat(AT_FDCWD, path, &facts, AT_SYMLINK_NOFOLLOW) ? 0 : facts.st_ino;
    errno = saved;
    return found;
}

/* ---- opening ---- */

static int open_at(int at, const char *name, int flags, mode_t mode) {
    char path[PATH_MAX];
    int nameless = (flags & O_TMPFILE) == O_TMPFILE;
    if (!(flags & (O_CREAT | O_TRUNC)) && !nameless) return syscall(SYS_openat, at, name, flags, mode);
    if (!resolve(at, name, path)) return syscall(SYS_openat, at, name, flags, mode);
    lock();
    uint64_t before = nameless ? 0 : inode_of(path);
    int fd = syscall(SYS_openat, at, name, flags, mode);
    struct stat facts;
    if (fd >= 0 && !fstat(fd, &facts)) {
        if (!before) note(CREATE, facts.st_ino, 0, nameless ? "" : path, NULL);
        else if ((flags & O_TRUNC) && (flags & O_ACCMODE) != O_RDONLY) note(TRUNCATE, facts.st_ino, 0, NULL, NULL);
    }
    unlock();
    return fd;
}

static mode_t mode_from(int flags, va_list rest) {
    return flags & (O_CREAT | (O_TMPFILE & ~O_DIRECTORY)) ? va_arg(rest, unsigned) : 0;
}

int open(const char *name, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = mode_from(flags, rest);
    va_end(rest);
    return open_at(AT_FDCWD, name, flags, mode);
}

int openat(int at, const char *name, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = mode_from(flags, rest);
    va_end(rest);
    return open_at(at, name, flags, mode);
}

int open64(const char *name, int flags, ...) __attribute__((alias("open")));
int openat64(int at, const char *name, int flags, ...) __attribute__((alias("openat")));
int creat(const char *name, mode_t mode) { return open_at(AT_FDCWD, name, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *name, mode_t mode) { return creat(name, mode); }
int __open_2(const char *name, int flags) { return open_at(AT_FDCWD, name, flags, 0); }
int __open64_2(const char *name, int flags) { return open_at(AT_FDCWD, name, flags, 0); }
int __openat_2(int at, const char *name, int flags) { return open_at(at, name, flags, 0); }
int __openat64_2(int at, const char *name, int flags) { return open_at(at, name, flags, 0); }

/* ---- writing ---- */

/* Under the lock: record the last write to `fd`. `offset` < 0: at the descriptor's position. */
static void note_write(int fd, const struct iovec *pieces, ssize_t written, off_t offset) {
    struct stat facts;
    int saved = errno, flags = syscall(SYS_fcntl, fd, F_GETFL);
    fstat(fd, &facts);
    if (flags & O_APPEND) offset = facts.st_size - written;
    else if (offset < 0) offset = syscall(SYS_lseek, fd, 0, SEEK_CUR) - written;
    char *at = begin(WRITE, facts.st_ino, offset, NULL, NULL, written);
    for (ssize_t put = 0; at && put < written; pieces++) {
        ssize_t size = (ssize_t)pieces->iov_len < written - put ? (ssize_t)pieces->iov_len : written - put;
        memcpy(at + put, pieces->iov_base, size);
        put += size;
    }
    commit(at, written);
    if (flags & O_DSYNC) note(SYNC, facts.st_ino, journal->next, NULL, NULL);
    errno = saved;
}

ssize_t write(int fd, const void *data, size_t size) {
    struct stat facts;
    if (!recorded(fd, &facts)) return syscall(SYS_write, fd, data, size);
    lock();
    ssize_t written = syscall(SYS_write, fd, data, size);
    struct iovec piece = {(void *)data, size};
    if (written > 0) note_write(fd, &piece, written, -1);
    unlock();
    return written;
}

ssize_t writev(int fd, const struct iovec *pieces, int count) {
    struct stat facts;
    if (!recorded(fd, &facts)) return syscall(SYS_writev, fd, pieces, count);
    lock();
    ssize_t written = syscall(SYS_writev, fd, pieces, count);
    if (written > 0) note_write(fd, pieces, written, -1);
    unlock();
    return written;
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
    struct stat facts;
    if (!recorded(fd, &facts)) return syscall(SYS_pwrite64, fd, data, size, offset);
    lock();
    ssize_t written = syscall(SYS_pwrite64, fd, data, size, offset);
    struct iovec piece = {(void *)data, size};
    if (written > 0) note_write(fd, &piece, written, offset);
    unlock();
    return written;
}

ssize_t pwritev2(int fd, const struct iovec *pieces, int count, off_t offset, int flags) {
    struct stat facts;
    if (!recorded(fd, &facts)) return syscall(SYS_pwritev2, fd, pieces, count, offset, 0L, flags);
    if (flags & ~RWF_HIPRI) trouble("pwritev2 with flags", NULL);
    lock();
    ssize_t written = syscall(SYS_pwritev2, fd, pieces, count, offset, 0L, flags);
    if (written > 0) note_write(fd, pieces, written, offset);
    unlock();
    return written;
}

ssize_t pwritev(int fd, const struct iovec *pieces, int count, off_t offset) {
    struct stat facts;
    if (!recorded(fd, &facts)) return syscall(SYS_pwritev, fd, pieces, count, offset, 0L);
    return pwritev2(fd, pieces, count, offset, 0);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) __attribute__((alias("pwrite")));
ssize_t pwritev64(int fd, const struct iovec *pieces, int count, off64_t offset) __attribute__((alias("pwritev")));
ssize_t pwritev64v2(int fd, const struct iovec *pieces, int count, off64_t offset, int flags)
    __attribute__((alias("pwritev2")));

/* Under the lock: record `size` bytes that the kernel copied into `fd`, by reading them back. */
static void note_copied(int fd, off_t offset, ssize_t size) {
    struct stat facts;
    char link[64];
    int saved = errno;
    fstat(fd, &facts);
    if (offset < 0) offset = syscall(SYS_lseek, fd, 0, SEEK_CUR) - size;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    int reader = syscall(SYS_openat, AT_FDCWD, link, O_RDONLY | O_CLOEXEC, 0);
    char *at = begin(WRITE, facts.st_ino, offset, NULL, NULL, size);
    for (ssize_t got = 0; at && got < size;) {
        ssize_t more = syscall(SYS_pread64, reader, at + got, size - got, offset + got);
        if (more <= 0) {
            note(TROUBLE, 0, 0, "copied bytes cannot be read back", NULL);
            break;
        }
        got += more;
    }
    commit(at, size);
    syscall(SYS_close, reader);
    errno = saved;
}

ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t size, unsigned flags) {
    struct stat facts;
    if (!recorded(out, &facts)) return syscall(SYS_copy_file_range, in, from, out, to, size, flags);
    lock();
    off_t offset = to ? *to : -1;
    ssize_t copied = syscall(SYS_copy_file_range, in, from, out, to, size, flags);
    if (copied > 0) note_copied(out, offset, copied);
    unlock();
    return copied;
}

ssize_t sendfile(int out, int in, off_t *from, size_t size) {
    struct stat facts;
    if (!recorded(out, &facts)) return syscall(SYS_sendfile, out, in, from, size);
    lock();
    ssize_t copied = syscall(SYS_sendfile, out, in, from, size);
    if (copied > 0) note_copied(out, -1, copied);
    unlock();
    return copied;
}

ssize_t sendfile64(int out, int in, off64_t *from, size_t size) __attribute__((alias("sendfile")));

ssize_t splice(int in, off64_t *from, int out, off64_t *to, size_t size, unsigned flags) {
    struct stat facts;
    if (recorded(out, &facts)) trouble("splice into a file", NULL);
    return syscall(SYS_splice, in, from, out, to, size, flags);
}

int ioctl(int fd, unsigned long request, ...) {
    va_list rest;
    va_start(rest, request);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    struct stat facts;
    if ((request == FICLONE || request == FICLONERANGE) && recorded(fd, &facts)) {
        errno = EOPNOTSUPP; /* as on ext4; the caller copies the bytes then */
        return -1;
    }
    return syscall(SYS_ioctl, fd, request, argument);
}

int ftruncate(int fd, off_t length) {
    struct stat facts;
    if (!recorded(fd, &facts)) return syscall(SYS_ftruncate, fd, length);
    lock();
    int result = syscall(SYS_ftruncate, fd, length);
    if (!result) note(TRUNCATE, facts.st_ino, length, NULL, NULL);
    unlock();
    return result;
}

int truncate(const char *name, off_t length) {
    char path[PATH_MAX];
    if (!resolve(AT_FDCWD, name, path)) return syscall(SYS_truncate, name, length);
    lock();
    int result = syscall(SYS_truncate, name, length);
    if (!result) note(TRUNCATE, inode_of(path), length, NULL, NULL);
    unlock();
    return result;
}

int ftruncate64(int fd, off64_t length) __attribute__((alias("ftruncate")));
int truncate64(const char *name, off64_t length) __attribute__((alias("truncate")));

int fallocate(int fd, int mode, off_t offset, off_t length) {
    struct stat facts;
    if (!recorded(fd, &facts)) return syscall(SYS_fallocate, fd, mode, offset, length);
    if (mode & ~FALLOC_FL_KEEP_SIZE) trouble("fallocate with a mode", NULL);
    lock();
    fstat(fd, &facts);
    int result = syscall(SYS_fallocate, fd, mode, offset, length);
    if (!result && !mode && offset + length > facts.st_size)
        note(TRUNCATE, facts.st_ino, offset + length, NULL, NULL);
    unlock();
    return result;
}

int fallocate64(int fd, int mode, off64_t offset, off64_t length) __attribute__((alias("fallocate")));
int posix_fallocate(int fd, off_t offset, off_t length) { return fallocate(fd, 0, offset, length) ? errno : 0; }
int posix_fallocate64(int fd, off64_t offset, off64_t length) { return posix_fallocate(fd, offset, length); }

/* ---- syncing ---- */

static int sync_one(int fd, long call) {
    struct stat facts;
    if (!recorded(fd, &facts)) return syscall(call, fd);
    lock();
    uint64_t began = journal->next;
    unlock();
    int result = syscall(call, fd);
    if (!result) {
        lock();
        note(SYNC, facts.st_ino, began, NULL, NULL);
        unlock();
    }
    return result;
}

int fsync(int fd) { return sync_one(fd, SYS_fsync); }
int fdatasync(int fd) { return sync_one(fd, SYS_fdatasync); }

int syncfs(int fd) {
    struct stat facts;
    if (!journal || fstat(fd, &facts) || facts.st_dev != root_device) return syscall(SYS_syncfs, fd);
    lock();
    uint64_t began = journal->next;
    unlock();
    int result = syscall(SYS_syncfs, fd);
    if (!result) {
        lock();
        note(SYNC_ALL, 0, began, NULL, NULL);
        unlock();
    }
    return result;
}

void sync(void) {
    if (journal) trouble("sync() of the whole machine", NULL);
    syscall(SYS_sync);
}

/* ---- names ---- */

int renameat2(int from, const char *source, int to, const char *target, unsigned flags) {
    char first[PATH_MAX], second[PATH_MAX];
    const char *old = resolve(from, source, first), *new = resolve(to, target, second);
    if (!old && !new) return syscall(SYS_renameat2, from, source, to, target, flags);
    if (!old || !new) trouble("a rename in or out", old ? old : new);
    if (flags & ~RENAME_NOREPLACE) trouble("renameat2 with flags", new);
    lock();
    int result = syscall(SYS_renameat2, from, source, to, target, flags);
    if (!result && old && new) note(RENAME, inode_of(new), 0, old, new);
    unlock();
    return result;
}

int rename(const char *source, const char *target) { return renameat2(AT_FDCWD, source, AT_FDCWD, target, 0); }
int renameat(int from, const char *source, int to, const char *target) { return renameat2(from, source, to, target, 0); }

int linkat(int from, const char *source, int to, const char *target, int flags) {
    char path[PATH_MAX];
    if (!resolve(to, target, path)) return syscall(SYS_linkat, from, source, to, target, flags);
    lock();
    int result = syscall(SYS_linkat, from, source, to, target, flags);
    if (!result) note(LINK, inode_of(path), 0, path, NULL);
    unlock();
    return result;
}

int link(const char *source, const char *target) { return linkat(AT_FDCWD, source, AT_FDCWD, target, 0); }

int symlinkat(const char *content, int at, const char *name) {
    char path[PATH_MAX];
    if (resolve(at, name, path)) trouble("a symbolic link", path);
    return syscall(SYS_symlinkat, content, at, name);
}

int symlink(const char *content, const char *name) { return symlinkat(content, AT_FDCWD, name); }

int unlinkat(int at, const char *name, int flags) {
    char path[PATH_MAX];
    if (!resolve(at, name, path)) return syscall(SYS_unlinkat, at, name, flags);
    lock();
    int result = syscall(SYS_unlinkat, at, name, flags);
    if (!result) note(flags & AT_REMOVEDIR ? RMDIR : UNLINK, 0, 0, path, NULL);
    unlock();
    return result;
}

int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }

int remove(const char *name) {
    int result = unlinkat(AT_FDCWD, name, 0);
    return result && (errno == EISDIR || errno == EPERM) ? rmdir(name) : result;
}

int mkdirat(int at, const char *name, mode_t mode) {
    char path[PATH_MAX];
    if (!resolve(at, name, path)) return syscall(SYS_mkdirat, at, name, mode);
    lock();
    int result = syscall(SYS_mkdirat, at, name, mode);
    if (!result) note(MKDIR, inode_of(path), 0, path, NULL);
    unlock();
    return result;
}

int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }

/* ---- calls that cannot be recorded, and must not occur ---- */

void *mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset) {
    struct stat facts;
    int shared = (flags & MAP_TYPE) == MAP_SHARED || (flags & MAP_TYPE) == MAP_SHARED_VALIDATE;
    if (fd >= 0 && shared && (protection & PROT_WRITE) && recorded(fd, &facts))
        trouble("a shared writable mapping", NULL);
    return (void *)syscall(SYS_mmap, address, length, protection, flags, fd, offset);
}

void *mmap64(void *address, size_t length, int protection, int flags, int fd, off64_t offset)
    __attribute__((alias("mmap")));

static FILE *stream(const char *function, const char *name, const char *mode, FILE *old) {
    char path[PATH_MAX];
    if (strpbrk(mode, "wa+") && resolve(AT_FDCWD, name, path)) trouble("a stdio stream for writing", path);
    if (old) return ((FILE * (*)(const char *, const char *, FILE *)) dlsym(RTLD_NEXT, function))(name, mode, old);
    return ((FILE * (*)(const char *, const char *)) dlsym(RTLD_NEXT, function))(name, mode);
}

FILE *fopen(const char *name, const char *mode) { return stream("fopen", name, mode, NULL); }
FILE *fopen64(const char *name, const char *mode) { return stream("fopen64", name, mode, NULL); }
FILE *freopen(const char *name, const char *mode, FILE *old) { return stream("freopen", name, mode, old); }
FILE *freopen64(const char *name, const char *mode, FILE *old) { return stream("freopen64", name, mode, old); }

static int temporary(const char *function, char *name, int flags) {
    char path[PATH_MAX];
    if (resolve(AT_FDCWD, name, path)) trouble("a temporary file of libc", path);
    return ((int (*)(char *, int))dlsym(RTLD_NEXT, function))(name, flags);
}

int mkstemp(char *name) { return temporary("mkostemp", name, 0); }
int mkstemp64(char *name) { return temporary("mkostemp", name, 0); }
int mkostemp(char *name, int flags) { return temporary("mkostemp", name, flags); }
int mkostemp64(char *name, int flags) { return temporary("mkostemp", name, flags); }
