/* Permissions of an ordinary user in root's file system, whose root directory is world-writable. */
#include "expect.h"
#include <nacre.h>
#include <unistd.h>

int main(int argc, char **argv) {
    struct nacre_fs *fs;
    struct stat st;
    int fd;

    EXPECT(argc == 3 && geteuid() != 0);
    fs = nacre_mount(argv[1], argv[2]);
    if (fs == NULL) {
        fprintf(stderr, "%s (errno %d)\n", nacre_mount_error(), errno);
        return 1;
    }
    FAILS(nacre_open(fs, "private", O_RDONLY, 0), EACCES);
    FAILS(nacre_access(fs, "private", R_OK), EACCES);
    FAILS(nacre_unlink(fs, "private"), EPERM);
    FAILS(nacre_chmod(fs, "private", 0666), EPERM);
    FAILS(nacre_truncate(fs, "private", 0), EACCES);
    FAILS(nacre_opendir(fs, "private_dir"), EACCES);
    FAILS(nacre_stat(fs, "private_dir/in", &st), EACCES);
    FAILS(nacre_mkdir(fs, "private_dir/in", 0700), EACCES);
    FAILS(nacre_chown(fs, "public", geteuid(), (gid_t)-1), EPERM);
    /* A write to another user's program clears its set-ID bits. */
    EXPECT(nacre_stat(fs, "public", &st) == 0 && st.st_mode == (S_IFREG | 06777));
    fd = nacre_open(fs, "public", O_WRONLY, 0);
    EXPECT(fd >= 0 && nacre_write(fs, fd, "#!", 2) == 2 && nacre_close(fs, fd) == 0);
    EXPECT(nacre_stat(fs, "public", &st) == 0 && st.st_mode == (S_IFREG | 0777) && st.st_size == 2);
    fd = nacre_open(fs, "mine", O_CREAT | O_EXCL | O_RDWR, 0400);
    EXPECT(fd >= 0 && nacre_write(fs, fd, "mine", 4) == 4);
    EXPECT(nacre_fstat(fs, fd, &st) == 0 && st.st_uid == geteuid() && st.st_gid == getegid() && st.st_size == 4);
    FAILS(nacre_open(fs, "mine", O_WRONLY, 0), EACCES);
    EXPECT(nacre_chmod(fs, "mine", 0644) == 0 && nacre_rename(fs, "mine", "own") == 0 && nacre_unlink(fs, "own") == 0);
    FAILS(nacre_umount(NULL), EFAULT);
    EXPECT(nacre_umount(fs) == 0);
    puts("passed");
    return 0;
}
