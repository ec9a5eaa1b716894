/* A thread that commits one group at a time and never touches the interpreter: checksums, pwrite, fdatasync, then one
 * byte into a pipe that the owner's event loop watches. A Python thread would have to win the interpreter lock twice
 * per group, and against a busy loop it can lose that race for hundreds of milliseconds. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

/* 0 or minus errno; as `sync_data` in platform.py: a file system may not know the full flush */
static int flush_file(int fd)
{
#if defined(F_FULLFSYNC)
    if (!fcntl(fd, F_FULLFSYNC))
        return 0;
    if (errno != ENOTSUP && errno != ENOTTY && errno != EINVAL)
        return -errno;
    return fsync(fd) ? -errno : 0;
#else
    return fdatasync(fd) ? -errno : 0;
#endif
}

/* Writes all of it at `offset`, flushes when asked to: 0, errno of the write, or minus errno of the flush. */
static int put_group(int fd, const uint8_t *p, size_t n, int64_t offset, int sync)
{
    while (n) {
        ssize_t written = pwrite(fd, p, n, (off_t)offset);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return written ? errno : ENOSPC;
        p += written;
        offset += written;
        n -= (size_t)written;
    }
    return sync ? flush_file(fd) : 0;
}

enum { COMMIT_IDLE, COMMIT_ASKED, COMMIT_DONE, COMMIT_STOP };

typedef struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    pthread_t thread;
    int state, stopping;
    int pipe[2];
    int fd, sync, result;
    int before; /* flushed first, -1 for none: the segment that was in use until now */
    uint8_t *data;
    size_t length;
    int64_t offset;
} commit_thread;

static int seal_group(uint8_t *p, size_t n);

static void *commit_run(void *argument)
{
    commit_thread *t = argument;
    pthread_mutex_lock(&t->mutex);
    for (;;) {
        while (t->state != COMMIT_ASKED && !t->stopping)
            pthread_cond_wait(&t->changed, &t->mutex);
        if (t->state != COMMIT_ASKED)
            break;
        pthread_mutex_unlock(&t->mutex);
        int result = seal_group(t->data, t->length) ? -EINVAL : 0;
        if (!result && t->before >= 0)
            result = flush_file(t->before);
        if (!result)
            result = put_group(t->fd, t->data, t->length, t->offset, t->sync);
        pthread_mutex_lock(&t->mutex);
        t->result = result;
        t->state = COMMIT_DONE;
        pthread_cond_broadcast(&t->changed);
        while (write(t->pipe[1], "", 1) < 0 && errno == EINTR)
            ;
    }
    pthread_mutex_unlock(&t->mutex);
    return NULL;
}

static commit_thread *commit_open(void)
{
    commit_thread *t = calloc(1, sizeof *t);
    sigset_t all, before;
    int wrong;
    if (!t)
        return NULL;
    if (pipe(t->pipe)) {
        free(t);
        return NULL;
    }
    for (int i = 0; i < 2; i++) {
        fcntl(t->pipe[i], F_SETFD, FD_CLOEXEC);
        fcntl(t->pipe[i], F_SETFL, O_NONBLOCK);
    }
    pthread_mutex_init(&t->mutex, NULL);
    pthread_cond_init(&t->changed, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the interpreter's */
    wrong = pthread_create(&t->thread, NULL, commit_run, t);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (wrong) {
        close(t->pipe[0]);
        close(t->pipe[1]);
        free(t);
        return NULL;
    }
    return t;
}

static void commit_ask(commit_thread *t, int fd, uint8_t *data, size_t length, int64_t offset, int sync,
                       int before)
{
    pthread_mutex_lock(&t->mutex);
    t->fd = fd;
    t->data = data;
    t->length = length;
    t->offset = offset;
    t->sync = sync;
    t->before = before;
    t->state = COMMIT_ASKED;
    pthread_cond_signal(&t->changed);
    pthread_mutex_unlock(&t->mutex);
}

/* 1 when the group that was asked for is done, with its result; waits for it when told to. */
static int commit_take(commit_thread *t, int wait, int *result)
{
    char bytes[8];
    int done;
    pthread_mutex_lock(&t->mutex);
    while (wait && t->state == COMMIT_ASKED)
        pthread_cond_wait(&t->changed, &t->mutex);
    done = t->state == COMMIT_DONE;
    if (done) {
        t->state = COMMIT_IDLE;
        *result = t->result;
        while (read(t->pipe[0], bytes, sizeof bytes) < 0 && errno == EINTR)
            ;
    }
    pthread_mutex_unlock(&t->mutex);
    return done;
}

static void commit_close(commit_thread *t)
{
    pthread_mutex_lock(&t->mutex);
    t->stopping = 1;
    pthread_cond_signal(&t->changed);
    pthread_mutex_unlock(&t->mutex);
    pthread_join(t->thread, NULL);
    close(t->pipe[0]);
    close(t->pipe[1]);
    free(t);
}
