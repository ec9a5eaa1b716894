/* A disk with faults, under a process that is started with LD_PRELOAD. Only files below a directory "segments" are meant.
 *
 *   DISK_FAIL=FILE     while FILE exists, fdatasync and fsync fail with EIO
 *   DISK_VOLATILE=N    writes stay in this process until they are flushed, so that SIGKILL is a power loss; of the sectors
 *                      written and not flushed one in N is on the disk all the same (0: none)
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SECTOR 512

struct pending {
    ino_t inode;
    off_t offset;
    size_t length;
    struct pending *next;
    char data[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pending *first, **last = &first;
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static ssize_t (*real_pread)(int, void *, size_t, off_t);
static int (*real_fdatasync)(int);
static int (*real_fsync)(int);
static const char *fail_file;
static int is_volatile, one_in;
static unsigned long luck = 88172645463325252UL;

__attribute__((constructor)) static void begin(void) {
    real_pwrite = dlsym(RTLD_NEXT, "pwrite64");
    real_pread = dlsym(RTLD_NEXT, "pread64");
    real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
    real_fsync = dlsym(RTLD_NEXT, "fsync");
    fail_file = getenv("DISK_FAIL");
    const char *asked = getenv("DISK_VOLATILE");
    is_volatile = asked != NULL;
    one_in = asked ? atoi(asked) : 0;
    luck += (unsigned long)getpid();
}

static int is_segment(int fd) {
    char link[32], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return strstr(path, "/segments/") != NULL;
}

static ino_t inode_of(int fd) {
    struct stat found;
    return fstat(fd, &found) ? 0 : found.st_ino;
}

static unsigned long roll(void) {
    luck ^= luck << 13, luck ^= luck >> 7, luck ^= luck << 17;
    return luck;
}

static ssize_t shim_pwrite(int fd, const void *data, size_t length, off_t offset) {
    if (!is_volatile || !is_segment(fd)) return real_pwrite(fd, data, length, offset);
    struct pending *held = malloc(sizeof *held + length);
    *held = (struct pending){.inode = inode_of(fd), .offset = offset, .length = length};
    memcpy(held->data, data, length);
    pthread_mutex_lock(&lock);
    *last = held;
    last = &held->next;
    for (size_t at = 0; one_in && at < length; at += SECTOR)
        if (roll() % (unsigned)one_in == 0)
            real_pwrite(fd, held->data + at, length - at < SECTOR ? length - at : SECTOR, offset + (off_t)at);
    pthread_mutex_unlock(&lock);
    return (ssize_t)length;
}

/* Everything that waits for this file goes to it. */
static void apply(int fd) {
    ino_t inode = inode_of(fd);
    pthread_mutex_lock(&lock);
    struct pending **at = &first;
    while (*at) {
        struct pending *held = *at;
        if (held->inode != inode) {
            at = &held->next;
            continue;
        }
        real_pwrite(fd, held->data, held->length, held->offset);
        *at = held->next;
        free(held);
    }
    last = at;
    pthread_mutex_unlock(&lock);
}

static int flush(int fd, int (*real)(int)) {
    if (is_segment(fd)) {
        if (fail_file && access(fail_file, F_OK) == 0) {
            errno = EIO;
            return -1;
        }
        if (is_volatile) apply(fd);
    }
    return real(fd);
}

static ssize_t shim_pread(int fd, void *data, size_t length, off_t offset) {
    ssize_t got = real_pread(fd, data, length, offset);
    if (got <= 0 || !is_volatile || !is_segment(fd)) return got;
    ino_t inode = inode_of(fd);
    pthread_mutex_lock(&lock);
    for (struct pending *held = first; held; held = held->next) {
        off_t from = held->offset > offset ? held->offset : offset;
        off_t end = held->offset + (off_t)held->length, wanted = offset + got;
        if (end > wanted) end = wanted;
        if (held->inode == inode && from < end)
            memcpy((char *)data + (from - offset), held->data + (from - held->offset), (size_t)(end - from));
    }
    pthread_mutex_unlock(&lock);
    return got;
}

ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) { return shim_pwrite(fd, data, length, offset); }
ssize_t pwrite64(int fd, const void *data, size_t length, off_t offset) { return shim_pwrite(fd, data, length, offset); }
ssize_t pread(int fd, void *data, size_t length, off_t offset) { return shim_pread(fd, data, length, offset); }
ssize_t pread64(int fd, void *data, size_t length, off_t offset) { return shim_pread(fd, data, length, offset); }
int fdatasync(int fd) { return flush(fd, real_fdatasync); }
int fsync(int fd) { return flush(fd, real_fsync); }
