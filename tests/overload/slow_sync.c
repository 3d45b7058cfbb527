/* Delays fsync and fdatasync of files whose path contains SLOW_PATH by SLOW_MS milliseconds (LD_PRELOAD, Linux). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int (*sync_call)(int);

static void wait_for(int fd)
{
	char link[64], path[4096];
	const char *part = getenv("SLOW_PATH"), *ms = getenv("SLOW_MS");
	if (!part || !ms)
		return;
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t size = readlink(link, path, sizeof path - 1);
	if (size < 0)
		return;
	path[size] = 0;
	if (strstr(path, part))
		usleep((useconds_t)atoi(ms) * 1000);
}

int fsync(int fd)
{
	static sync_call next;
	if (!next)
		next = (sync_call)dlsym(RTLD_NEXT, "fsync");
	wait_for(fd);
	return next(fd);
}

int fdatasync(int fd)
{
	static sync_call next;
	if (!next)
		next = (sync_call)dlsym(RTLD_NEXT, "fdatasync");
	wait_for(fd);
	return next(fd);
}
