/* Mounts: errors, several mounts at once, threads, signals, and a child process. */
#include "expect.h"
#include <nacre.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 8, ROUNDS = 40 };

static struct nacre_fs *fs;

/* Checks that a mount fails with the errno `expected` and a message that contains `text`. */
static void expect_mount_fails(const char *source, const char *options, int expected, const char *text) {
    errno = 0;
    EXPECT(nacre_mount(source, options) == NULL);
    if (errno != expected || strstr(nacre_mount_error(), text) == NULL) {
        fprintf(stderr, "%s, %s: errno %d, not %d; '%s', not '%s'\n", source, options, errno, expected, nacre_mount_error(), text);
        exit(1);
    }
}

/* A thread: writes, reads and removes its own file, and uses a file that all threads share. */
static void *use_files(void *number) {
    char path[32], text[32], back[32];
    int i, fd, shared, thread = *(int *)number;
    sprintf(path, "/own-%d", thread);
    shared = nacre_open(fs, "/shared", O_CREAT | O_RDWR, 0666);
    EXPECT(shared >= 0);
    for (i = 0; i < ROUNDS; i++) {
        int len = sprintf(text, "%d of %d", i, thread);
        fd = nacre_open(fs, path, O_CREAT | O_RDWR | O_TRUNC, 0666);
        EXPECT(fd >= 0 && nacre_write(fs, fd, text, len) == len);
        EXPECT(nacre_pread(fs, fd, back, sizeof back, 0) == len && memcmp(text, back, len) == 0);
        EXPECT(nacre_close(fs, fd) == 0);
        EXPECT(nacre_pwrite(fs, shared, text, 8, 8 * (i * THREADS + thread)) == 8);
        EXPECT(nacre_pread(fs, shared, back, 8, 8 * (i * THREADS + thread)) == 8 && memcmp(text, back, 8) == 0);
        EXPECT(nacre_unlink(fs, path) == 0);
    }
    EXPECT(nacre_close(fs, shared) == 0);
    return NULL;
}

static volatile sig_atomic_t signalled;

static pthread_t handler_thread;

static void on_signal(int number) {
    (void)number;
    handler_thread = pthread_self();
    signalled = 1;
}

int main(int argc, char **argv) {
    struct nacre_fs *other;
    struct sigaction act;
    struct stat st, seen;
    pthread_t threads[THREADS];
    int i, fd, status, numbers[THREADS];
    char options[64];

    EXPECT(argc == 3);
    expect_mount_fails("nonsense", NULL, EINVAL, "not of the form");
    expect_mount_fails("127.0.1.1@tcp:/waytoolong", NULL, EINVAL, "waytoolong");
    expect_mount_fails(argv[1], "listne=1", EINVAL, "listne=1");
    expect_mount_fails(argv[1], "jobid_var=a-b", EINVAL, "jobid_var");
    expect_mount_fails(argv[1], "port=0", EINVAL, "from 1 to 65535");
    sprintf(options, "listen=192.0.2.1@tcp,%s", argv[2]);
    expect_mount_fails(argv[1], options, EADDRNOTAVAIL, "192.0.2.1@tcp");
    sprintf(options, "listen=127.0.1.1@tcp,%s", argv[2]);
    expect_mount_fails(argv[1], options, EADDRINUSE, "127.0.1.1@tcp");
    expect_mount_fails("127.0.1.1@tcp:/absent", argv[2], ENOENT, "absent");

    fs = nacre_mount(argv[1], argv[2]);
    other = nacre_mount(argv[1], argv[2]);
    if (fs == NULL || other == NULL) {
        fprintf(stderr, "%s (errno %d)\n", nacre_mount_error(), errno);
        return 1;
    }
    EXPECT(fs != other);
    fd = nacre_open(fs, "seen", O_CREAT | O_WRONLY, 0644);
    EXPECT(fd >= 0 && nacre_write(fs, fd, "at once", 7) == 7);
    FAILS(nacre_close(other, fd), EBADF);
    EXPECT(nacre_stat(other, "seen", &seen) == 0 && seen.st_size == 7);
    EXPECT(nacre_fstat(fs, fd, &st) == 0 && st.st_ino == seen.st_ino && st.st_dev != seen.st_dev);
    EXPECT(nacre_umount(other) == 0);
    FAILS(nacre_stat(other, "seen", &st), EBADF);

    for (i = 0; i < THREADS; i++) {
        numbers[i] = i;
        EXPECT(pthread_create(&threads[i], NULL, use_files, &numbers[i]) == 0);
    }
    for (i = 0; i < THREADS; i++)
        EXPECT(pthread_join(threads[i], NULL) == 0);
    EXPECT(nacre_stat(fs, "shared", &st) == 0 && st.st_size == 8 * THREADS * ROUNDS);

    /* A signal goes to the program's thread, not to a thread of the library. */
    memset(&act, 0, sizeof act);
    act.sa_handler = on_signal;
    EXPECT(sigaction(SIGUSR1, &act, NULL) == 0 && kill(getpid(), SIGUSR1) == 0);
    EXPECT(signalled && pthread_equal(handler_thread, pthread_self()));

    /*
     * A child process does not have the mount's threads: its calls fail instead of waiting forever.
     */
    if (fork() == 0) {
        int failed = nacre_stat(fs, "seen", &st) == -1 && errno == ENOTCONN && nacre_umount(fs) == -1 && errno == ENOTCONN;
        _exit(failed ? 7 : 1);
    }
    EXPECT(wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    EXPECT(nacre_close(fs, fd) == 0 && nacre_umount(fs) == 0);
    puts("passed");
    return 0;
}
