/* The basic use: mount, write, read, unmount. */
#include "expect.h"
#include <nacre.h>

int main(int argc, char **argv) {
    char back[64];
    struct nacre_fs *fs;
    int fd;

    EXPECT(argc == 3);
    EXPECT(strcmp(nacre_version(), "") != 0);
    fs = nacre_mount(argv[1], argv[2]);
    if (fs == NULL) {
        fprintf(stderr, "%s (errno %d)\n", nacre_mount_error(), errno);
        return 1;
    }
    EXPECT(strcmp(nacre_mount_error(), "") == 0);
    fd = nacre_open(fs, "/first", O_CREAT | O_EXCL | O_RDWR, 0644);
    EXPECT(fd == 3);
    EXPECT(nacre_pwrite(fs, fd, "a file system", 13, 5) == 13);
    EXPECT(nacre_pread(fs, fd, back, sizeof back, 0) == 18);
    EXPECT(memcmp(back, "\0\0\0\0\0a file system", 18) == 0);
    EXPECT(nacre_pread(fs, fd, back, sizeof back, 18) == 0);
    EXPECT(nacre_close(fs, fd) == 0);
    FAILS(nacre_close(fs, fd), EBADF);
    FAILS(nacre_pread(fs, fd, back, sizeof back, 0), EBADF);
    EXPECT(nacre_umount(fs) == 0);
    FAILS(nacre_umount(fs), EBADF);
    FAILS(nacre_open(fs, "/first", O_RDONLY, 0), EBADF);
    puts("passed");
    return 0;
}
