/*
 * Measures operations of libnacre, for rates.py: prints the name and the seconds of each.
 *
 *     rates SOURCE OPTIONS DIRECTORY
 */

#include <errno.h>
#include <fcntl.h>
#include <nacre.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PIECE = 1 << 20, PIECES = 256, FILES = 2000, SMALL = 4096 };

static struct nacre_fs *fs;
static const char *dir;
static double started;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void expect(int ok, const char *what) {
    if (!ok) {
        fprintf(stderr, "rates: %s: %s\n", what, strerror(errno));
        exit(1);
    }
}

static void report(const char *name) {
    printf("%s %.6f\n", name, now() - started);
    started = now();
}

static const char *path_of(int n) {
    static char path[256];
    snprintf(path, sizeof path, "%s/f%d", dir, n);
    return path;
}

static void large(char *buffer) {
    int fd, i;
    started = now();
    fd = nacre_open(fs, path_of(0), O_CREAT | O_RDWR, 0644);
    expect(fd >= 0, "open");
    for (i = 0; i < PIECES; i++)
        expect(nacre_write(fs, fd, buffer, PIECE) == PIECE, "write");
    report("write");
    for (i = 0; i < PIECES; i++)
        expect(nacre_pread(fs, fd, buffer, PIECE, (off_t)i * PIECE) == PIECE, "read");
    report("read");
    for (i = 0; i < PIECES * 16; i++)
        expect(nacre_pread(fs, fd, buffer, SMALL, (off_t)i * SMALL) == SMALL, "small read");
    report("read-4k");
    expect(nacre_close(fs, fd) == 0, "close");
    expect(nacre_unlink(fs, path_of(0)) == 0, "unlink");
}

static void small(char *buffer) {
    struct nacre_dirent entry;
    struct stat st;
    int fd, i, found = 0;
    started = now();
    for (i = 0; i < FILES; i++) {
        fd = nacre_open(fs, path_of(i), O_CREAT | O_WRONLY | O_EXCL, 0644);
        expect(fd >= 0 && nacre_write(fs, fd, buffer, SMALL) == SMALL && nacre_close(fs, fd) == 0, "create");
    }
    report("create");
    for (i = 0; i < FILES; i++)
        expect(nacre_stat(fs, path_of(i), &st) == 0, "stat");
    report("stat");
    for (i = 0; i < FILES; i++) {
        fd = nacre_open(fs, path_of(i), O_RDONLY, 0);
        expect(fd >= 0 && nacre_read(fs, fd, buffer, SMALL) == SMALL && nacre_close(fs, fd) == 0, "open and read");
    }
    report("open-read");
    for (i = 0; i < 10; i++) {
        fd = nacre_opendir(fs, dir);
        expect(fd >= 0, "opendir");
        while (nacre_readdir(fs, fd, &entry) > 0)
            found++;
        expect(nacre_closedir(fs, fd) == 0, "closedir");
    }
    expect(found >= 10 * FILES, "readdir");
    report("list");
    for (i = 0; i < FILES; i++)
        expect(nacre_unlink(fs, path_of(i)) == 0, "unlink");
    report("unlink");
}

int main(int argc, char **argv) {
    char *buffer = calloc(1, PIECE);
    if (argc != 4 || buffer == NULL)
        return 2;
    fs = nacre_mount(argv[1], argv[2]);
    if (fs == NULL) {
        fprintf(stderr, "rates: %s\n", nacre_mount_error());
        return 1;
    }
    dir = argv[3];
    expect(nacre_mkdir(fs, dir, 0755) == 0, "mkdir");
    large(buffer);
    small(buffer);
    expect(nacre_rmdir(fs, dir) == 0, "rmdir");
    expect(nacre_umount(fs) == 0, "umount");
    free(buffer);
    return 0;
}
