/*
 * nacre.h: access to a Nacre (or Lustre) file system from a program, without a kernel mount.
 *
 *     struct nacre_fs *fs = nacre_mount("10.0.0.1@tcp:/fs", NULL);
 *     if (fs == NULL)
 *         errx(1, "%s", nacre_mount_error());
 *     int fd = nacre_open(fs, "/results/step-1", O_CREAT | O_WRONLY, 0644);
 *     if (fd < 0 || nacre_pwrite(fs, fd, data, size, 0) < 0 || nacre_close(fs, fd) < 0)
 *         err(1, "/results/step-1");
 *     nacre_umount(fs);
 *
 * Build with `cc prog.c -lnacre`. The functions take a mount as first parameter. Otherwise they
 * have the parameters and the behaviour of the POSIX functions of the same name, except for the
 * differences listed here.
 *
 * ERRORS. On failure, functions return -1 (nacre_mount: NULL) and set errno as POSIX specifies. In
 * addition:
 *     EFAULT     a required pointer is NULL
 *     EBADF      the mount has been unmounted, or the file number is not open in it
 *     ENOTCONN   the mount belongs to this process's parent, or its network has shut down
 *     EIO        written data was lost (nacre_fsync and nacre_close report this), or the library
 *                has a bug (a line on standard error reports it)
 *
 * THREADS. Any thread may call any function at any time, also several threads on one file. The
 * threads of a mount block all signals, and the library installs no signal handlers. A signal does
 * not interrupt a waiting call.
 *
 * FORK. A child process does not inherit the mount's threads: fork first, then mount (MPI programs:
 * after MPI_Init). In the child, calls on the parent's mount fail; exec and _exit work.
 *
 * PATHS are relative to the file system's root, with or without a leading `/`. There is no current
 * directory. Symbolic links that begin with `/` also resolve from that root.
 *
 * USER. A mount uses the user, groups and umask of the process at the time of nacre_mount.
 *
 * CONSISTENCY. Written data is visible to every client when nacre_write returns. It is on the
 * servers after nacre_close, and on their disks after nacre_fsync. Call nacre_umount before the
 * program ends. Otherwise other clients wait for its locks until the servers notice the end (up to
 * minutes), and the data that it wrote in the last half second to files still open is lost.
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

/* A mounted file system, valid from nacre_mount to nacre_umount. */
struct nacre_fs;

/* The version of the library, such as "0.1.0". */
const char *nacre_version(void);

/*
 * Mounts the file system `source`: "MGSNID[,MGSNID...]:/FSNAME", such as "10.0.0.1@tcp:/fs".
 *
 * `options`: NULL, or a comma-separated list:
 *     listen=NID     the address of this process. Default: an address that reaches the MGS; if the
 *                    MGS is on loopback, a free loopback address. EACH PROCESS NEEDS ITS OWN
 *                    ADDRESS: set this option if several processes of a machine mount, except on
 *                    loopback.
 *     port=N         the TCP port of all nodes of the site. Default: 988, or 7988 if the MGS
 *                    listens only there
 *     threads=N      threads for network and caches. Default: the number of CPUs, at most 4
 *     relatime, strictatime, noatime, diratime, nodiratime
 *                    access time policy, as for mount(8). Default: relatime
 *     jobid_var=SOURCE, jobid_name=PATTERN
 *                    the job's name for the servers' statistics and rules: SOURCE is procname_uid,
 *                    nodelocal, or an environment variable such as SLURM_JOB_ID. Default: none
 *
 * Returns NULL on failure; see nacre_mount_error and errno: EINVAL (source or options), ENOENT (no
 * such file system on the MGS), EADDRINUSE, EADDRNOTAVAIL or EACCES (address), ENOTCONN,
 * ECONNREFUSED, EHOSTUNREACH or ETIMEDOUT (no server), ...
 */
struct nacre_fs *nacre_mount(const char *source, const char *options);

/*
 * The message of this thread's last nacre_mount; "" if the mount succeeded. The pointer is valid
 * until the thread's next nacre_mount.
 */
const char *nacre_mount_error(void);

/*
 * Closes all open files, writes cached data back, and releases all locks. The file system is
 * unmounted afterwards, even if this returns -1 because a write failed. Concurrent calls of other
 * threads fail.
 */
int nacre_umount(struct nacre_fs *fs);

/* Sets the umask for new files; returns the former umask. */
int nacre_umask(struct nacre_fs *fs, mode_t mask);

/* ---- Files ---- */

/*
 * Opens a file and returns its number in this mount: the lowest free number, from 3 on. The number
 * is not a file descriptor of the system. `flags`: O_RDONLY, O_WRONLY or O_RDWR; O_CREAT, O_EXCL,
 * O_TRUNC, O_APPEND, O_SYNC, O_DSYNC, O_DIRECT (bypasses the cache), O_DIRECTORY, O_NOFOLLOW; other
 * flags are ignored. `mode` applies to a created file. Directories can be opened for reading, as
 * with nacre_opendir. ENXIO: the file is a device, pipe or socket.
 */
int nacre_open(struct nacre_fs *fs, const char *path, int flags, mode_t mode);

/* nacre_open with O_CREAT | O_WRONLY | O_TRUNC. */
int nacre_creat(struct nacre_fs *fs, const char *path, mode_t mode);

/*
 * Closes a file. -1 with EIO, ENOSPC, ...: written data was lost. The file is closed all the same.
 */
int nacre_close(struct nacre_fs *fs, int fd);

/*
 * Read and write at an offset. They return the number of bytes. A read returns fewer than `count`
 * at the end of the file, and 0 if no bytes follow. Both functions return fewer than `count` if an
 * error prevents the rest; the next call then returns the error.
 */
ssize_t nacre_pread(struct nacre_fs *fs, int fd, void *buf, size_t count, off_t offset);
ssize_t nacre_pwrite(struct nacre_fs *fs, int fd, const void *buf, size_t count, off_t offset);

/* Read and write at the file position, and advance it. With O_APPEND, writes go to the end. */
ssize_t nacre_read(struct nacre_fs *fs, int fd, void *buf, size_t count);
ssize_t nacre_write(struct nacre_fs *fs, int fd, const void *buf, size_t count);

/* Sets the file position. `whence`: SEEK_SET, SEEK_CUR, SEEK_END, SEEK_DATA or SEEK_HOLE. */
off_t nacre_lseek(struct nacre_fs *fs, int fd, off_t offset, int whence);

/* Write data and attributes (for a directory: its entries) to the servers' disks. */
int nacre_fsync(struct nacre_fs *fs, int fd);
int nacre_fdatasync(struct nacre_fs *fs, int fd);

/* Truncate a file, or extend it with zeros. */
int nacre_ftruncate(struct nacre_fs *fs, int fd, off_t size);
int nacre_truncate(struct nacre_fs *fs, const char *path, off_t size);

/* ---- Names ---- */

int nacre_mkdir(struct nacre_fs *fs, const char *path, mode_t mode);
int nacre_rmdir(struct nacre_fs *fs, const char *path);
int nacre_unlink(struct nacre_fs *fs, const char *path);
int nacre_rename(struct nacre_fs *fs, const char *from, const char *to);
int nacre_link(struct nacre_fs *fs, const char *from, const char *to);
int nacre_symlink(struct nacre_fs *fs, const char *target, const char *path);

/* Reads a symbolic link: at most `size` bytes, without a NUL. Returns the number of bytes. */
ssize_t nacre_readlink(struct nacre_fs *fs, const char *path, char *buf, size_t size);

/* Creates a file (S_IFREG: one request, no objects on OSTs), a pipe, a socket or a device. */
int nacre_mknod(struct nacre_fs *fs, const char *path, mode_t mode, dev_t dev);

/* ---- Directories ---- */

/* An entry of a directory. */
struct nacre_dirent {
    ino_t d_ino;          /* inode number, as st_ino */
    unsigned char d_type; /* DT_REG, DT_DIR, ... of <dirent.h> */
    char d_name[256];     /* NUL-terminated name */
};

/* Opens a directory and returns its number, which nacre_fstat and nacre_fsync also accept. */
int nacre_opendir(struct nacre_fs *fs, const char *path);

/*
 * Reads the next entry, including `.` and `..`, in no particular order. Returns 1, or 0 at the end.
 */
int nacre_readdir(struct nacre_fs *fs, int fd, struct nacre_dirent *entry);

/* Continues at the beginning of the directory, with its current entries. */
int nacre_rewinddir(struct nacre_fs *fs, int fd);

int nacre_closedir(struct nacre_fs *fs, int fd);

/* ---- Attributes ---- */

/*
 * Attributes of a file; nacre_lstat does not follow a symbolic link. Each mount of a process has
 * its own st_dev.
 */
int nacre_stat(struct nacre_fs *fs, const char *path, struct stat *st);
int nacre_lstat(struct nacre_fs *fs, const char *path, struct stat *st);
int nacre_fstat(struct nacre_fs *fs, int fd, struct stat *st);

/*
 * Checks that the mount's user has the permissions in `mode` (R_OK, W_OK and X_OK of <unistd.h>),
 * or with F_OK, that the file exists.
 */
int nacre_access(struct nacre_fs *fs, const char *path, int mode);

int nacre_chmod(struct nacre_fs *fs, const char *path, mode_t mode);
int nacre_fchmod(struct nacre_fs *fs, int fd, mode_t mode);

/* (uid_t)-1 and (gid_t)-1 leave the owner or group unchanged. */
int nacre_chown(struct nacre_fs *fs, const char *path, uid_t uid, gid_t gid);
int nacre_lchown(struct nacre_fs *fs, const char *path, uid_t uid, gid_t gid);
int nacre_fchown(struct nacre_fs *fs, int fd, uid_t uid, gid_t gid);

/*
 * Set access and modification time as utimensat(2), including UTIME_NOW and UTIME_OMIT; NULL: now.
 */
int nacre_utimens(struct nacre_fs *fs, const char *path, const struct timespec times[2]);
int nacre_lutimens(struct nacre_fs *fs, const char *path, const struct timespec times[2]);
int nacre_futimens(struct nacre_fs *fs, int fd, const struct timespec times[2]);

/* Space of the whole file system, at most one second old. */
int nacre_statvfs(struct nacre_fs *fs, struct statvfs *st);

/* Extended attributes, as getxattr(2) etc. With `size` 0, only return the number of bytes. */
ssize_t nacre_getxattr(struct nacre_fs *fs, const char *path, const char *name, void *value, size_t size);
int nacre_setxattr(struct nacre_fs *fs, const char *path, const char *name, const void *value, size_t size, int flags);
ssize_t nacre_listxattr(struct nacre_fs *fs, const char *path, char *list, size_t size);
int nacre_removexattr(struct nacre_fs *fs, const char *path, const char *name);

/* ---- Stripes ---- */

/* The layout of a file on object targets (OSTs). */
struct nacre_stripe {
    uint32_t size;     /* stripe size in bytes, a multiple of 65536; 0: the directory's default */
    int32_t count;     /* number of OSTs; -1: all; 0: the directory's default */
    int32_t first_ost; /* the OST of the first stripe; -1: any */
};

/*
 * nacre_open with the layout `stripe` for a created file, as `lfs setstripe`. EINVAL: invalid
 * layout.
 */
int nacre_open_striped(struct nacre_fs *fs, const char *path, int flags, mode_t mode, const struct nacre_stripe *stripe);

/*
 * Sets the default layout of a directory, or the layout of a file that has no layout yet (EEXIST:
 * it has one).
 */
int nacre_setstripe(struct nacre_fs *fs, const char *path, const struct nacre_stripe *stripe);

/* The layout of a file, or the default layout of a directory (ENODATA: it has none). */
int nacre_getstripe(struct nacre_fs *fs, const char *path, struct nacre_stripe *stripe);

#ifdef __cplusplus
}
#endif

#endif
