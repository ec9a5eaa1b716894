/* Clocks that jump, under a process that is started with LD_PRELOAD.
 *
 *   CLOCK_OFFSETS=FILE   three numbers of 64 bits, ns: what is added to the wall clock, to CLOCK_BOOTTIME (a machine
 *                        that slept), and to CLOCK_MONOTONIC and its like (below zero, with CLOCK_BOOTTIME: a virtual
 *                        machine whose hypervisor paused it); they are looked at with each call
 *
 * What waits until a moment of CLOCK_MONOTONIC waits by the kernel's, so that moment is told in the kernel's time.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

static int (*real_clock_gettime)(clockid_t, struct timespec *);
static volatile int64_t *offsets;

__attribute__((constructor)) static void begin(void) {
    real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    const char *file = getenv("CLOCK_OFFSETS");
    int fd = file ? open(file, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *mapped = mmap(NULL, 3 * sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
    if (mapped != MAP_FAILED) offsets = mapped;
    close(fd);
}

int clock_gettime(clockid_t which, struct timespec *at) {
    if (real_clock_gettime == NULL) real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real_clock_gettime(which, at);
    if (failed || offsets == NULL) return failed;
    int64_t more = which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE ? offsets[0]
                   : which == CLOCK_BOOTTIME                                 ? offsets[1]
                   : which == CLOCK_MONOTONIC || which == CLOCK_MONOTONIC_RAW || which == CLOCK_MONOTONIC_COARSE
                       ? offsets[2]
                       : 0;
    int64_t ns = at->tv_sec * SECOND + at->tv_nsec + more;
    at->tv_sec = ns / SECOND;
    at->tv_nsec = ns % SECOND;
    return 0;
}

static struct timespec in_the_kernels_time(const struct timespec *until) {
    int64_t ns = until->tv_sec * SECOND + until->tv_nsec - (offsets ? offsets[2] : 0);
    return (struct timespec){.tv_sec = ns / SECOND, .tv_nsec = ns % SECOND};
}

int clock_nanosleep(clockid_t which, int flags, const struct timespec *span, struct timespec *left) {
    static int (*real)(clockid_t, int, const struct timespec *, struct timespec *);
    if (real == NULL) real = dlsym(RTLD_NEXT, "clock_nanosleep");
    if (which != CLOCK_MONOTONIC || flags != TIMER_ABSTIME) return real(which, flags, span, left);
    struct timespec until = in_the_kernels_time(span);
    return real(which, flags, &until, left);
}

int sem_clockwait(sem_t *semaphore, clockid_t which, const struct timespec *moment) {
    static int (*real)(sem_t *, clockid_t, const struct timespec *);
    if (real == NULL) real = dlsym(RTLD_NEXT, "sem_clockwait");
    if (which != CLOCK_MONOTONIC) return real(semaphore, which, moment);
    struct timespec until = in_the_kernels_time(moment);
    return real(semaphore, which, &until);
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    (void)zone;
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
