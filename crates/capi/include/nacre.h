/*
 * nacre.h: a Nacre (or Lustre) file system in a program, without a kernel between.
 *
 *     struct nacre_fs *fs = nacre_mount("10.0.0.1@tcp:/fs", NULL);
 *     if (fs == NULL)
 *         errx(1, "%s", nacre_mount_error());
 *     int fd = nacre_open(fs, "/results/step-1", O_CREAT | O_WRONLY, 0644);
 *     if (fd < 0 || nacre_pwrite(fs, fd, data, size, 0) < 0 || nacre_close(fs, fd) < 0)
 *         err(1, "/results/step-1");
 *     nacre_umount(fs);
 *
 * Build with `cc prog.c -lnacre`. Functions are those of POSIX with a mount before their other parameters, and do what
 * POSIX says but for what is said here.
 *
 * ERRORS. A function that fails returns -1 (nacre_mount: NULL) and sets errno as POSIX has it. Besides:
 *     EFAULT     a pointer is NULL that must not be
 *     EBADF      the mount is not mounted any more, or the number is not open in it
 *     ENOTCONN   the mount was made by this process's parent; or its network is gone
 *     EIO        also: what could not be written was lost (fsync and close tell it); or an error of this library, of which
 *                standard error has a line
 *
 * THREADS. Any function may be called by any thread at any time, also several on one file. A mount has threads of its own;
 * they block all signals, and the library touches no handler. A call that waits is not ended by a signal.
 *
 * FORK. A child has none of the mount's threads: fork first, then mount (MPI programs: after MPI_Init). In the child,
 * calls on the parent's mount fail; exec and _exit are fine.
 *
 * PATHS start at the file system's root, with a `/` or without: there is no current directory. So do symbolic links that
 * begin with `/`.
 *
 * WHO. A mount works as the user, with the groups and the umask that the process had in nacre_mount.
 *
 * WHAT OTHERS SEE. Every client sees what was written at once, when nacre_write returns. nacre_close has it at the servers;
 * nacre_fsync has it on their disks. End a program by nacre_umount: for those of a process that just ends, locks are waited for
 * until the servers notice (up to minutes), and what was written half a second before it and not closed is lost.
 */
#ifndef NACRE_H
#define NACRE_H

#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Mounts ---- */

/* A mounted file system: from nacre_mount to nacre_umount. */
struct nacre_fs;

/* The version of the library: "0.1.0". */
const char *nacre_version(void);

/*
 * Mounts the file system `source`: "MGSNID[,MGSNID...]:/FSNAME", such as "10.0.0.1@tcp:/fs".
 *
 * `options`, separated by commas, or NULL:
 *     listen=NID     the address of this process; without, one from which the MGS is reached, or a free one on loopback.
 *                    EACH PROCESS NEEDS ITS OWN: several on one machine must be given addresses, but on loopback.
 *     port=N         the TCP port of all nodes of the site; without, 988, or 7988 if the MGS is only there
 *     threads=N      threads for network and caches; without, 4 or as many as there are CPUs, if those are fewer
 *     relatime, strictatime, noatime, diratime, nodiratime
 *                    which reads change access times, as for mount(8); relatime unless told otherwise
 *
 * NULL: see nacre_mount_error, and errno: EINVAL (source or options), ENOENT (the MGS knows no such file system),
 * EADDRINUSE, EADDRNOTAVAIL or EACCES (the address), ENOTCONN, ECONNREFUSED, EHOSTUNREACH or ETIMEDOUT (no server there), ...
 */
struct nacre_fs *nacre_mount(const char *source, const char *options);

/* Why nacre_mount last failed in this thread, and what to do; "" if it did not. Good until the thread mounts again. */
const char *nacre_mount_error(void);

/*
 * Closes what is open, writes back, and gives everything back to the servers. The mount is gone afterwards, also when it
 * returns -1 because something could not be written. Calls of other threads that are under way fail.
 */
int nacre_umount(struct nacre_fs *fs);

/* Sets the permissions that new files do not get, and returns the former ones. */
int nacre_umask(struct nacre_fs *fs, mode_t mask);

/* ---- Files ---- */

/*
 * Opens a file and returns its number in this mount: the lowest that is free, from 3 on. It is no descriptor of the system.
 * `flags`: O_RDONLY, O_WRONLY or O_RDWR; O_CREAT, O_EXCL, O_TRUNC, O_APPEND, O_SYNC, O_DSYNC, O_DIRECT (past the cache),
 * O_DIRECTORY, O_NOFOLLOW; others are ignored. `mode` is for a file that is created. A directory opens for reading, as by
 * nacre_opendir. ENXIO: a device, a pipe or a socket.
 */
int nacre_open(struct nacre_fs *fs, const char *path, int flags, mode_t mode);

/* nacre_open with O_CREAT | O_WRONLY | O_TRUNC. */
int nacre_creat(struct nacre_fs *fs, const char *path, mode_t mode);

/* Closes it. -1 with EIO, ENOSPC, ...: some of what was written is lost; the number is free all the same. */
int nacre_close(struct nacre_fs *fs, int fd);

/* Read and write bytes at an offset. Fewer than `count` are read at the file's end only; 0: there is nothing more. */
ssize_t nacre_pread(struct nacre_fs *fs, int fd, void *buf, size_t count, off_t offset);
ssize_t nacre_pwrite(struct nacre_fs *fs, int fd, const void *buf, size_t count, off_t offset);

/* The same at the file's position, which moves on. With O_APPEND every write goes to the end. */
ssize_t nacre_read(struct nacre_fs *fs, int fd, void *buf, size_t count);
ssize_t nacre_write(struct nacre_fs *fs, int fd, const void *buf, size_t count);

/* Moves the position. `whence`: SEEK_SET, SEEK_CUR, SEEK_END, SEEK_DATA or SEEK_HOLE. */
off_t nacre_lseek(struct nacre_fs *fs, int fd, off_t offset, int whence);

/* When they return, data and attributes (of a directory: its entries) are on the servers' disks. */
int nacre_fsync(struct nacre_fs *fs, int fd);
int nacre_fdatasync(struct nacre_fs *fs, int fd);

/* Cut a file, or make it longer by zeros. */
int nacre_ftruncate(struct nacre_fs *fs, int fd, off_t size);
int nacre_truncate(struct nacre_fs *fs, const char *path, off_t size);

/* ---- Names ---- */

int nacre_mkdir(struct nacre_fs *fs, const char *path, mode_t mode);
int nacre_rmdir(struct nacre_fs *fs, const char *path);
int nacre_unlink(struct nacre_fs *fs, const char *path);
int nacre_rename(struct nacre_fs *fs, const char *from, const char *to);
int nacre_link(struct nacre_fs *fs, const char *from, const char *to);
int nacre_symlink(struct nacre_fs *fs, const char *target, const char *path);

/* What a symbolic link holds: at most `size` bytes, without a NUL behind them. Returns how many. */
ssize_t nacre_readlink(struct nacre_fs *fs, const char *path, char *buf, size_t size);

/* Makes a file (S_IFREG, in one request and without objects), a pipe, a socket or a device. */
int nacre_mknod(struct nacre_fs *fs, const char *path, mode_t mode, dev_t dev);

/* ---- Directories ---- */

/* An entry of a directory. */
struct nacre_dirent {
    ino_t d_ino;          /* inode number, as st_ino */
    unsigned char d_type; /* DT_REG, DT_DIR, ... of <dirent.h> */
    char d_name[256];     /* name, with a NUL behind it */
};

/* Opens a directory and returns its number, which nacre_fstat and nacre_fsync take, too. */
int nacre_opendir(struct nacre_fs *fs, const char *path);

/* The next entry, `.` and `..` among them, in no particular order. Returns 1; 0 at the end. */
int nacre_readdir(struct nacre_fs *fs, int fd, struct nacre_dirent *entry);

/* Goes back to the beginning, to read the directory as it is then. */
int nacre_rewinddir(struct nacre_fs *fs, int fd);

int nacre_closedir(struct nacre_fs *fs, int fd);

/* ---- Attributes ---- */

/* Attributes of a file; nacre_lstat: of a symbolic link itself. st_dev tells mounts of a process apart. */
int nacre_stat(struct nacre_fs *fs, const char *path, struct stat *st);
int nacre_lstat(struct nacre_fs *fs, const char *path, struct stat *st);
int nacre_fstat(struct nacre_fs *fs, int fd, struct stat *st);

/* Whether the mount's user may do all of R_OK, W_OK and X_OK, or F_OK, whether it is there (<unistd.h>). */
int nacre_access(struct nacre_fs *fs, const char *path, int want);

int nacre_chmod(struct nacre_fs *fs, const char *path, mode_t mode);
int nacre_fchmod(struct nacre_fs *fs, int fd, mode_t mode);

/* (uid_t)-1 and (gid_t)-1 leave what is there. */
int nacre_chown(struct nacre_fs *fs, const char *path, uid_t uid, gid_t gid);
int nacre_lchown(struct nacre_fs *fs, const char *path, uid_t uid, gid_t gid);
int nacre_fchown(struct nacre_fs *fs, int fd, uid_t uid, gid_t gid);

/* Times of the last access and of the last change, as for utimensat(2), UTIME_NOW and UTIME_OMIT included; NULL: now. */
int nacre_utimens(struct nacre_fs *fs, const char *path, const struct timespec times[2]);
int nacre_lutimens(struct nacre_fs *fs, const char *path, const struct timespec times[2]);
int nacre_futimens(struct nacre_fs *fs, int fd, const struct timespec times[2]);

/* The whole file system's space, at most a second old. */
int nacre_statvfs(struct nacre_fs *fs, struct statvfs *st);

/* Extended attributes, as getxattr(2) and its like; with `size` 0 they return how many bytes there are. */
ssize_t nacre_getxattr(struct nacre_fs *fs, const char *path, const char *name, void *value, size_t size);
int nacre_setxattr(struct nacre_fs *fs, const char *path, const char *name, const void *value, size_t size, int flags);
ssize_t nacre_listxattr(struct nacre_fs *fs, const char *path, char *list, size_t size);
int nacre_removexattr(struct nacre_fs *fs, const char *path, const char *name);

/* ---- Stripes ---- */

/* How a file lies on object targets (OSTs). */
struct nacre_stripe {
    uint32_t size;     /* bytes on one OST before the next has its turn: a multiple of 65536; 0: the directory's default */
    int32_t count;     /* on how many OSTs; -1: all; 0: the directory's default */
    int32_t first_ost; /* the OST of the first stripe; -1: any */
};

/* nacre_open; a file that it creates lies as `stripe` says (`lfs setstripe`). EINVAL: there cannot be such a layout. */
int nacre_open_striped(struct nacre_fs *fs, const char *path, int flags, mode_t mode, const struct nacre_stripe *stripe);

/* Sets what new files in a directory get, or the layout of a file that has none yet (EEXIST: it has one). */
int nacre_setstripe(struct nacre_fs *fs, const char *path, const struct nacre_stripe *stripe);

/* A file's layout, or a directory's default (ENODATA: it has none of its own). */
int nacre_getstripe(struct nacre_fs *fs, const char *path, struct nacre_stripe *stripe);

#ifdef __cplusplus
}
#endif

#endif
