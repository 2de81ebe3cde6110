/* The wall clock of a machine that is CLOCK_AHEAD_SECONDS ahead, for a program that has this preloaded. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static time_t ahead(void)
{
    const char *seconds = getenv("CLOCK_AHEAD_SECONDS");
    return seconds ? atol(seconds) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *found)
{
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int answer = real(clock, found);
    if (answer == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        found->tv_sec += ahead();
    return answer;
}

int gettimeofday(struct timeval *restrict found, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    found->tv_sec = now.tv_sec;
    found->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *found)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (found)
        *found = now.tv_sec;
    return now.tv_sec;
}
