/* Writes a seccomp filter, as BPF, to the standard output: the calls of a reactor on epoll,
   x86_64. The arguments name the parts: reactor, connections, napi, signals, serve, admin, reload.
   `cargo xtask syscalls` writes this file. Compile it with -lseccomp. */

#include <seccomp.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct part {
    const char *name;
    const int *calls;
};

/* For a reactor on one thread, with eventfds, timers, TCP and Unix streams, from its first turn to its end. */
static const int reactor[] = {
    SCMP_SYS(accept4),
    SCMP_SYS(brk),
    SCMP_SYS(clock_gettime),
    SCMP_SYS(close),
    SCMP_SYS(epoll_create1),
    SCMP_SYS(epoll_ctl),
    SCMP_SYS(epoll_pwait2),
    SCMP_SYS(epoll_wait),
    SCMP_SYS(eventfd2),
    SCMP_SYS(exit),
    SCMP_SYS(exit_group),
    SCMP_SYS(fcntl),
    SCMP_SYS(futex),
    SCMP_SYS(getpeername),
    SCMP_SYS(getrandom),
    SCMP_SYS(getsockname),
    SCMP_SYS(getsockopt),
    SCMP_SYS(gettid),
    SCMP_SYS(madvise),
    SCMP_SYS(mmap),
    SCMP_SYS(mprotect),
    SCMP_SYS(mremap),
    SCMP_SYS(munmap),
    SCMP_SYS(openat),
    SCMP_SYS(ppoll),
    SCMP_SYS(prctl),
    SCMP_SYS(read),
    SCMP_SYS(recvfrom),
    SCMP_SYS(recvmsg),
    SCMP_SYS(restart_syscall),
    SCMP_SYS(rt_sigprocmask),
    SCMP_SYS(sched_yield),
    SCMP_SYS(sendmsg),
    SCMP_SYS(sendto),
    SCMP_SYS(setsockopt),
    SCMP_SYS(shutdown),
    SCMP_SYS(sigaltstack),
    SCMP_SYS(timerfd_create),
    SCMP_SYS(timerfd_settime),
    SCMP_SYS(write),
    __NR_SCMP_ERROR,
};

/* For listeners and connections that are opened later. */
static const int connections[] = {
    SCMP_SYS(bind),
    SCMP_SYS(connect),
    SCMP_SYS(ioctl),
    SCMP_SYS(listen),
    SCMP_SYS(socket),
    __NR_SCMP_ERROR,
};

/* For `Builder::napi` on epoll, if the program closes registered descriptors (rule 7). */
static const int napi[] = {
    SCMP_SYS(ioctl),
    __NR_SCMP_ERROR,
};

/* For a `SignalSet` that is made later. */
static const int signals[] = {
    SCMP_SYS(rt_sigaction),
    SCMP_SYS(signalfd4),
    __NR_SCMP_ERROR,
};

/* For `windlass serve`, but for a hand-over, which passes sockets. */
static const int serve[] = {
    SCMP_SYS(pread64),
    SCMP_SYS(rt_sigtimedwait),
    __NR_SCMP_ERROR,
};

/* For an admin listener of `windlass-server`, as `windlass serve --admin` has one. */
static const int admin[] = {
    SCMP_SYS(getdents64),
    SCMP_SYS(newfstatat),
    SCMP_SYS(openat),
    SCMP_SYS(prlimit64),
    SCMP_SYS(statx),
    __NR_SCMP_ERROR,
};

/* For a reload of `windlass serve` by SIGHUP. */
static const int reload[] = {
    SCMP_SYS(openat),
    SCMP_SYS(prlimit64),
    SCMP_SYS(statx),
    __NR_SCMP_ERROR,
};

static const struct part parts[] = {
    {"reactor", reactor},
    {"connections", connections},
    {"napi", napi},
    {"signals", signals},
    {"serve", serve},
    {"admin", admin},
    {"reload", reload},
};

int main(int argc, char **argv) {
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_KILL_PROCESS);
    if (!filter || seccomp_arch_remove(filter, SCMP_ARCH_NATIVE) ||
        seccomp_arch_add(filter, SCMP_ARCH_X86_64))
        return 1;
    for (int i = 1; i < argc; i++) {
        const int *call = NULL;
        for (size_t p = 0; p < sizeof(parts) / sizeof(*parts); p++)
            if (!strcmp(parts[p].name, argv[i]))
                call = parts[p].calls;
        if (!call) {
            fprintf(stderr, "no such part: %s\n", argv[i]);
            return 2;
        }
        for (; *call != __NR_SCMP_ERROR; call++)
            if (seccomp_rule_add(filter, SCMP_ACT_ALLOW, *call, 0))
                return 1;
    }
    return seccomp_export_bpf(filter, STDOUT_FILENO) ? 1 : 0;
}
