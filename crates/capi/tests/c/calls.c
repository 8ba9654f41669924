/* Calls the functions of nacre.h, with valid and invalid arguments. */
#include "expect.h"
#include <dirent.h>
#include <nacre.h>
#include <unistd.h>

static struct nacre_fs *fs;

static mode_t mode_of(const char *path) {
    struct stat st;
    EXPECT(nacre_lstat(fs, path, &st) == 0);
    return st.st_mode;
}

/* Creates a file with this text; returns its number. */
static int make_file(const char *path, const char *text) {
    int fd = nacre_open(fs, path, O_CREAT | O_EXCL | O_RDWR, 0644);
    EXPECT(fd >= 0);
    EXPECT(nacre_write(fs, fd, text, strlen(text)) == (ssize_t)strlen(text));
    return fd;
}

static void test_file_numbers(void) {
    char byte;
    struct stat st;
    int a = make_file("/a", "a"), b = make_file("b", "b");
    EXPECT(a == 3 && b == 4);
    EXPECT(nacre_close(fs, a) == 0);
    FAILS(nacre_close(fs, a), EBADF);
    FAILS(nacre_read(fs, a, &byte, 1), EBADF);
    FAILS(nacre_close(fs, -1), EBADF);
    FAILS(nacre_close(fs, 0), EBADF);
    EXPECT(nacre_open(fs, "a", O_WRONLY, 0) == a);
    FAILS(nacre_read(fs, a, &byte, 1), EBADF);
    EXPECT(nacre_close(fs, a) == 0 && nacre_close(fs, b) == 0);
    FAILS(nacre_open(NULL, "a", O_RDONLY, 0), EFAULT);
    FAILS(nacre_open((struct nacre_fs *)4711, "a", O_RDONLY, 0), EBADF);
    FAILS(nacre_open(fs, NULL, O_RDONLY, 0), EFAULT);
    FAILS(nacre_open(fs, "", O_RDONLY, 0), ENOENT);
    FAILS(nacre_stat(fs, "a", NULL), EFAULT);
    FAILS(nacre_stat(fs, "a/b", &st), ENOTDIR);
    FAILS(nacre_stat(fs, "a/", &st), ENOTDIR);
    EXPECT(nacre_mount(NULL, NULL) == NULL && errno == EFAULT);
}

static void test_positions(void) {
    char buf[32];
    int fd = make_file("p", "0123456789"), other;
    EXPECT(nacre_lseek(fs, fd, 0, SEEK_CUR) == 10);
    EXPECT(nacre_lseek(fs, fd, -4, SEEK_END) == 6);
    EXPECT(nacre_read(fs, fd, buf, sizeof buf) == 4 && memcmp(buf, "6789", 4) == 0);
    EXPECT(nacre_read(fs, fd, buf, sizeof buf) == 0);
    EXPECT(nacre_pread(fs, fd, buf, 2, 1) == 2 && memcmp(buf, "12", 2) == 0);
    EXPECT(nacre_lseek(fs, fd, 0, SEEK_CUR) == 10);
    FAILS(nacre_lseek(fs, fd, -1, SEEK_SET), EINVAL);
    FAILS(nacre_lseek(fs, fd, 0, 77), EINVAL);
    FAILS(nacre_pread(fs, fd, buf, 1, -1), EINVAL);
    FAILS(nacre_pread(fs, fd, NULL, 1, 0), EFAULT);
    EXPECT(nacre_pread(fs, fd, NULL, 0, 0) == 0);
    other = nacre_open(fs, "p", O_WRONLY | O_APPEND, 0);
    EXPECT(other >= 0);
    EXPECT(nacre_write(fs, other, "ab", 2) == 2);
    EXPECT(nacre_lseek(fs, other, 0, SEEK_CUR) == 12);
    EXPECT(nacre_pread(fs, fd, buf, sizeof buf, 0) == 12 && memcmp(buf, "0123456789ab", 12) == 0);
    EXPECT(nacre_fsync(fs, other) == 0 && nacre_fdatasync(fs, fd) == 0);
    EXPECT(nacre_ftruncate(fs, fd, 3) == 0 && nacre_truncate(fs, "p", 5) == 0);
    EXPECT(nacre_pread(fs, fd, buf, sizeof buf, 0) == 5 && memcmp(buf, "012\0\0", 5) == 0);
    FAILS(nacre_ftruncate(fs, fd, -1), EINVAL);
    EXPECT(nacre_close(fs, fd) == 0 && nacre_close(fs, other) == 0);
    fd = nacre_creat(fs, "p", 0600);
    EXPECT(fd >= 0 && nacre_lseek(fs, fd, 0, SEEK_END) == 0);
    FAILS(nacre_ftruncate(fs, 1000, 0), EBADF);
    EXPECT(nacre_close(fs, fd) == 0);
    FAILS(nacre_open(fs, "p", O_CREAT | O_EXCL | O_RDWR, 0600), EEXIST);
    FAILS(nacre_open(fs, "p", O_RDONLY | O_DIRECTORY, 0), ENOTDIR);
}

/* A transfer of several RPCs over both OSTs, at an odd offset. */
static void test_large_transfer(void) {
    const size_t size = 11 * 1024 * 1024 + 17;
    unsigned char *out = (unsigned char *)malloc(size), *back = (unsigned char *)calloc(size, 1);
    struct nacre_stripe wanted = {1 << 20, 2, 1}, got;
    size_t i;
    int fd;
    EXPECT(out != NULL && back != NULL);
    for (i = 0; i < size; i++)
        out[i] = (unsigned char)(i * 2654435761u >> 13);
    fd = nacre_open_striped(fs, "much", O_CREAT | O_RDWR, 0644, &wanted);
    EXPECT(fd >= 0);
    EXPECT(nacre_pwrite(fs, fd, out, size, 12345) == (ssize_t)size);
    EXPECT(nacre_pread(fs, fd, back, size, 12345) == (ssize_t)size && memcmp(out, back, size) == 0);
    EXPECT(nacre_pread(fs, fd, back, size, 12346) == (ssize_t)size - 1);
    EXPECT(nacre_close(fs, fd) == 0);
    EXPECT(nacre_getstripe(fs, "much", &got) == 0);
    EXPECT(got.size == 1 << 20 && got.count == 2 && got.first_ost == 1);
    wanted.size = 4711;
    FAILS(nacre_open_striped(fs, "odd", O_CREAT | O_RDWR, 0644, &wanted), EINVAL);
    FAILS(nacre_open_striped(fs, "odd", O_CREAT | O_RDWR, 0644, NULL), EFAULT);
    EXPECT(nacre_mkdir(fs, "wide", 0755) == 0);
    FAILS(nacre_getstripe(fs, "wide", &got), ENODATA);
    wanted.size = 0;
    wanted.count = -1;
    wanted.first_ost = -1;
    EXPECT(nacre_setstripe(fs, "wide", &wanted) == 0);
    EXPECT(nacre_getstripe(fs, "wide", &got) == 0 && got.count == -1 && got.first_ost == -1);
    fd = nacre_open(fs, "wide/f", O_CREAT | O_WRONLY, 0644);
    EXPECT(fd >= 0 && nacre_close(fs, fd) == 0);
    EXPECT(nacre_getstripe(fs, "wide/f", &got) == 0 && got.count == 2);
    free(out);
    free(back);
}

static void test_names(void) {
    char buf[16];
    struct stat st, original;
    EXPECT(nacre_mkdir(fs, "/d", 0777) == 0 && nacre_mkdir(fs, "d/e/", 0700) == 0);
    FAILS(nacre_mkdir(fs, "/d", 0777), EEXIST);
    FAILS(nacre_mkdir(fs, "/", 0777), EEXIST);
    FAILS(nacre_mkdir(fs, "/no/where", 0777), ENOENT);
    FAILS(nacre_rmdir(fs, "d"), ENOTEMPTY);
    FAILS(nacre_unlink(fs, "d"), EISDIR);
    FAILS(nacre_open(fs, "d", O_RDWR, 0), EISDIR);
    FAILS(nacre_open(fs, "d", O_CREAT | O_WRONLY, 0600), EISDIR);
    EXPECT(nacre_close(fs, make_file("d/f", "f")) == 0);
    EXPECT(nacre_stat(fs, "d/../d/./e/../f", &st) == 0 && st.st_size == 1 && S_ISREG(st.st_mode));
    EXPECT(nacre_stat(fs, "../../..", &st) == 0 && S_ISDIR(st.st_mode));
    EXPECT(nacre_link(fs, "d/f", "d/e/g") == 0);
    EXPECT(nacre_stat(fs, "d/e/g", &st) == 0 && nacre_stat(fs, "d/f", &original) == 0);
    EXPECT(st.st_ino == original.st_ino && st.st_nlink == 2 && st.st_dev == original.st_dev);
    EXPECT(nacre_rename(fs, "d/e/g", "d/h") == 0);
    FAILS(nacre_rename(fs, "d/e/g", "d/h"), ENOENT);
    FAILS(nacre_rename(fs, "d/h", "d/i/"), ENOTDIR);
    EXPECT(nacre_symlink(fs, "../d/./f", "d/l") == 0 && nacre_symlink(fs, "/d", "d/e/up") == 0);
    EXPECT(S_ISLNK(mode_of("d/l")));
    EXPECT(nacre_readlink(fs, "d/l", buf, sizeof buf) == 8 && memcmp(buf, "../d/./f", 8) == 0);
    EXPECT(nacre_readlink(fs, "d/l", buf, 3) == 3);
    FAILS(nacre_readlink(fs, "d/f", buf, sizeof buf), EINVAL);
    EXPECT(nacre_stat(fs, "d/e/up/e/up/l", &st) == 0 && st.st_ino == original.st_ino);
    EXPECT(nacre_symlink(fs, "loop", "loop") == 0);
    FAILS(nacre_stat(fs, "loop", &st), ELOOP);
    FAILS(nacre_open(fs, "d/l", O_RDONLY | O_NOFOLLOW, 0), ELOOP);
    FAILS(nacre_open(fs, "d/l", O_CREAT | O_EXCL | O_RDWR, 0600), EEXIST);
    EXPECT(nacre_unlink(fs, "d/h") == 0 && nacre_stat(fs, "d/f", &st) == 0 && st.st_nlink == 1);
    /* A create through a symbolic link creates the link's target. */
    EXPECT(nacre_symlink(fs, "e/made", "d/to") == 0);
    EXPECT(nacre_close(fs, nacre_open(fs, "d/to", O_CREAT | O_WRONLY, 0640)) == 0);
    EXPECT(S_ISREG(mode_of("d/e/made")) && S_ISLNK(mode_of("d/to")));
    EXPECT(nacre_mknod(fs, "d/pipe", S_IFIFO | 0600, 0) == 0 && S_ISFIFO(mode_of("d/pipe")));
    EXPECT(nacre_mknod(fs, "d/plain", 0600, 0) == 0 && mode_of("d/plain") == (S_IFREG | 0600));
    FAILS(nacre_open(fs, "d/pipe", O_RDONLY, 0), ENXIO);
    FAILS(nacre_open(fs, "d/pipe", O_CREAT | O_WRONLY, 0600), ENXIO);
    {
        char name[300];
        memset(name, 'n', sizeof name);
        name[299] = 0;
        FAILS(nacre_mkdir(fs, name, 0700), ENAMETOOLONG);
    }
}

static void test_directories(void) {
    const int count = 3000;
    struct nacre_dirent e;
    struct stat st;
    char path[32];
    int i, round, fd, seen, dots;
    EXPECT(nacre_mkdir(fs, "many", 0755) == 0);
    for (i = 0; i < count; i++) {
        sprintf(path, "many/%d", i);
        EXPECT(nacre_mknod(fs, path, S_IFREG | 0644, 0) == 0);
    }
    fd = nacre_opendir(fs, "many");
    EXPECT(fd >= 0);
    for (round = 0; round < 2; round++) {
        seen = dots = 0;
        while ((i = nacre_readdir(fs, fd, &e)) == 1) {
            if (e.d_name[0] == '.') {
                dots++;
                EXPECT(e.d_type == DT_DIR);
            } else {
                seen++;
                EXPECT(e.d_type == DT_REG && e.d_ino != 0);
            }
        }
        EXPECT(i == 0 && seen == count && dots == 2);
        EXPECT(nacre_readdir(fs, fd, &e) == 0);
        EXPECT(nacre_rewinddir(fs, fd) == 0);
    }
    EXPECT(nacre_fstat(fs, fd, &st) == 0 && S_ISDIR(st.st_mode) && nacre_fsync(fs, fd) == 0);
    FAILS(nacre_read(fs, fd, path, 1), EISDIR);
    FAILS(nacre_readdir(fs, fd, NULL), EFAULT);
    EXPECT(nacre_closedir(fs, fd) == 0);
    FAILS(nacre_closedir(fs, fd), EBADF);
    FAILS(nacre_opendir(fs, "a"), ENOTDIR);
    fd = nacre_open(fs, "a", O_RDONLY, 0);
    FAILS(nacre_readdir(fs, fd, &e), ENOTDIR);
    FAILS(nacre_closedir(fs, fd), ENOTDIR);
    EXPECT(nacre_close(fs, fd) == 0);
}

static void test_attributes(void) {
    struct timespec times[2] = {{1000000000, 5}, {-7, UTIME_OMIT}};
    struct statvfs space;
    struct stat st, before;
    int fd = make_file("at", "12345");
    EXPECT(nacre_fstat(fs, fd, &st) == 0 && st.st_size == 5 && st.st_mode == (S_IFREG | 0644));
    EXPECT(st.st_uid == geteuid() && st.st_gid == getegid() && st.st_nlink == 1 && st.st_blksize > 0);
    EXPECT(nacre_chmod(fs, "at", 04711) == 0 && mode_of("at") == (S_IFREG | 04711));
    EXPECT(nacre_chown(fs, "at", (uid_t)-1, getegid()) == 0);
    EXPECT(mode_of("at") == (S_IFREG | 0711));
    EXPECT(nacre_fchmod(fs, fd, 0640) == 0 && mode_of("at") == (S_IFREG | 0640));
    EXPECT(nacre_fchown(fs, fd, geteuid(), (gid_t)-1) == 0 && nacre_lchown(fs, "at", geteuid(), getegid()) == 0);
    EXPECT(nacre_stat(fs, "at", &before) == 0 && nacre_utimens(fs, "at", times) == 0 && nacre_stat(fs, "at", &st) == 0);
    EXPECT(st.st_atim.tv_sec == 1000000000 && st.st_atim.tv_nsec == 5);
    EXPECT(st.st_mtim.tv_sec == before.st_mtim.tv_sec && st.st_mtim.tv_nsec == before.st_mtim.tv_nsec);
    times[1].tv_nsec = 2000000000;
    FAILS(nacre_utimens(fs, "at", times), EINVAL);
    times[1].tv_nsec = 0;
    EXPECT(nacre_futimens(fs, fd, times) == 0 && nacre_stat(fs, "at", &st) == 0 && st.st_mtim.tv_sec == -7);
    EXPECT(nacre_symlink(fs, "nowhere", "hang") == 0 && nacre_lutimens(fs, "hang", times) == 0);
    FAILS(nacre_utimens(fs, "hang", NULL), ENOENT);
    EXPECT(nacre_utimens(fs, "at", NULL) == 0 && nacre_stat(fs, "at", &st) == 0 && st.st_mtim.tv_sec > 1700000000);
    EXPECT(nacre_access(fs, "at", R_OK | W_OK) == 0 && nacre_access(fs, "at", F_OK) == 0);
    FAILS(nacre_access(fs, "at", X_OK), EACCES);
    FAILS(nacre_access(fs, "not", F_OK), ENOENT);
    FAILS(nacre_access(fs, "at", 8), EINVAL);
    EXPECT(nacre_umask(fs, 077) == 022 && nacre_close(fs, make_file("private", "")) == 0);
    EXPECT(nacre_umask(fs, 022) == 077 && mode_of("private") == (S_IFREG | 0600));
    EXPECT(nacre_statvfs(fs, &space) == 0 && space.f_blocks > 0 && space.f_bavail <= space.f_bfree);
    EXPECT(space.f_namemax == 255 && space.f_files > space.f_ffree);
    EXPECT(nacre_close(fs, fd) == 0);
}

static void test_xattrs(void) {
    char buf[64];
    EXPECT(nacre_setxattr(fs, "at", "user.color", "green", 5, 0) == 0);
    FAILS(nacre_setxattr(fs, "at", "user.color", "red", 3, 1), EEXIST);
    EXPECT(nacre_getxattr(fs, "at", "user.color", NULL, 0) == 5);
    EXPECT(nacre_getxattr(fs, "at", "user.color", buf, sizeof buf) == 5 && memcmp(buf, "green", 5) == 0);
    FAILS(nacre_getxattr(fs, "at", "user.color", buf, 4), ERANGE);
    FAILS(nacre_getxattr(fs, "at", "user.size", buf, sizeof buf), ENODATA);
    EXPECT(nacre_listxattr(fs, "at", buf, sizeof buf) == 11 && memcmp(buf, "user.color", 11) == 0);
    EXPECT(nacre_removexattr(fs, "at", "user.color") == 0);
    FAILS(nacre_removexattr(fs, "at", "user.color"), ENODATA);
}

int main(int argc, char **argv) {
    int left;
    EXPECT(argc == 3);
    umask(022);
    fs = nacre_mount(argv[1], argv[2]);
    if (fs == NULL) {
        fprintf(stderr, "%s (errno %d)\n", nacre_mount_error(), errno);
        return 1;
    }
    test_file_numbers();
    test_positions();
    test_large_transfer();
    test_names();
    test_directories();
    test_attributes();
    test_xattrs();
    /* An unmount writes back and closes an open file. */
    left = make_file("left", "open");
    EXPECT(nacre_umount(fs) == 0);
    FAILS(nacre_close(fs, left), EBADF);
    fs = nacre_mount(argv[1], argv[2]);
    EXPECT(fs != NULL);
    left = nacre_open(fs, "left", O_RDONLY, 0);
    EXPECT(left >= 0 && nacre_lseek(fs, left, 0, SEEK_END) == 4);
    EXPECT(nacre_umount(fs) == 0);
    puts("passed");
    return 0;
}
