/*
 * A small mdtest and IOR: an MPI program that uses a file system through libnacre only, with one
 * mount for each rank.
 *
 *     mpicc -O2 nacre_mpi.c -lnacre -o nacre_mpi
 *     mpirun -np 4 ./nacre_mpi -n 1000 -b 64m -t 1m 10.0.0.1@tcp:/fs
 *
 * First each rank creates, stats and removes files in one shared directory. Then each rank writes a
 * file, and reads and verifies the file of its neighbour. A barrier separates the steps. The time
 * of a step is the time that its slowest rank takes.
 */
#include <errno.h>
#include <mpi.h>
#include <nacre.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int rank, ranks;

/* Reports an error and aborts all ranks. */
static void fail(const char *what, const char *path) {
    fprintf(stderr, "rank %d: %s %s: %s\n", rank, what, path, strerror(errno));
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Begins a step, after a barrier. Returns its start time. */
static double begin(void) {
    MPI_Barrier(MPI_COMM_WORLD);
    return MPI_Wtime();
}

/* Ends a step in which each rank processed `amount` of `unit`; rank 0 prints the total speed. */
static void end(const char *step, double start, double amount, const char *unit) {
    double elapsed = MPI_Wtime() - start, longest = 0;
    MPI_Reduce(&elapsed, &longest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("%-8s %12.1f %s   (%.3f s)\n", step, amount * ranks / longest, unit, longest);
}

/* Parses a size such as "64m"; returns bytes. */
static size_t parse_size(const char *text) {
    char *unit;
    size_t number = strtoull(text, &unit, 10);
    switch (*unit) {
    case 'k': return number << 10;
    case 'm': return number << 20;
    case 'g': return number << 30;
    default: return number;
    }
}

/* Fills a buffer with the data that `writer` writes at `offset`: the data depends on both. */
static void fill(unsigned char *data, size_t size, int writer, size_t offset) {
    for (size_t i = 0; i < size; i++)
        data[i] = (unsigned char)((offset + i) * 2654435761u >> 11 ^ (size_t)writer * 97);
}

static void run_metadata_steps(struct nacre_fs *fs, const char *dir, int files) {
    char path[256];
    struct stat st;
    double start = begin();
    for (int i = 0; i < files; i++) {
        snprintf(path, sizeof path, "%s/file.%d.%d", dir, rank, i);
        int fd = nacre_open(fs, path, O_CREAT | O_EXCL | O_WRONLY, 0664);
        if (fd < 0 || nacre_close(fs, fd) < 0)
            fail("create", path);
    }
    end("create", start, files, "files/s");
    /* Stat the neighbour's files, because this mount may have its own files in the cache. */
    int neighbour = (rank + 1) % ranks;
    start = begin();
    for (int i = 0; i < files; i++) {
        snprintf(path, sizeof path, "%s/file.%d.%d", dir, neighbour, i);
        if (nacre_stat(fs, path, &st) < 0)
            fail("stat", path);
    }
    end("stat", start, files, "files/s");
    start = begin();
    for (int i = 0; i < files; i++) {
        snprintf(path, sizeof path, "%s/file.%d.%d", dir, rank, i);
        if (nacre_unlink(fs, path) < 0)
            fail("unlink", path);
    }
    end("remove", start, files, "files/s");
}

static void run_data_steps(struct nacre_fs *fs, const char *dir, size_t size, size_t transfer) {
    const struct nacre_stripe all_osts = {1 << 20, -1, -1};
    const double mib = (double)size / (1 << 20);
    unsigned char *buffer = malloc(transfer), *expected = malloc(transfer);
    char path[256];
    if (buffer == NULL || expected == NULL)
        fail("cannot allocate", "transfer buffers");
    snprintf(path, sizeof path, "%s/data.%d", dir, rank);
    double start = begin();
    int fd = nacre_open_striped(fs, path, O_CREAT | O_EXCL | O_WRONLY, 0664, &all_osts);
    if (fd < 0)
        fail("create", path);
    for (size_t offset = 0; offset < size; offset += transfer) {
        size_t length = size - offset < transfer ? size - offset : transfer;
        fill(buffer, length, rank, offset);
        if (nacre_pwrite(fs, fd, buffer, length, (off_t)offset) != (ssize_t)length)
            fail("write", path);
    }
    if (nacre_fsync(fs, fd) < 0 || nacre_close(fs, fd) < 0)
        fail("sync", path);
    end("write", start, mib, "MiB/s");

    int neighbour = (rank + 1) % ranks;
    snprintf(path, sizeof path, "%s/data.%d", dir, neighbour);
    start = begin();
    fd = nacre_open(fs, path, O_RDONLY, 0);
    if (fd < 0)
        fail("open", path);
    for (size_t offset = 0; offset < size; offset += transfer) {
        size_t length = size - offset < transfer ? size - offset : transfer;
        if (nacre_pread(fs, fd, buffer, length, (off_t)offset) != (ssize_t)length)
            fail("read", path);
        fill(expected, length, neighbour, offset);
        if (memcmp(buffer, expected, length) != 0) {
            errno = EIO;
            fail("read wrong data from", path);
        }
    }
    if (nacre_pread(fs, fd, buffer, 1, (off_t)size) != 0 || nacre_close(fs, fd) < 0)
        fail("find the end of", path);
    end("read", start, mib, "MiB/s");
    MPI_Barrier(MPI_COMM_WORLD);
    snprintf(path, sizeof path, "%s/data.%d", dir, rank);
    if (nacre_unlink(fs, path) < 0)
        fail("unlink", path);
    free(buffer);
    free(expected);
}

int main(int argc, char **argv) {
    const char *options = NULL, *dir = "/nacre_mpi";
    size_t size = 16 << 20, transfer = 1 << 20;
    int files = 100, option;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    while ((option = getopt(argc, argv, "n:b:t:d:o:")) != -1) {
        switch (option) {
        case 'n': files = atoi(optarg); break;
        case 'b': size = parse_size(optarg); break;
        case 't': transfer = parse_size(optarg); break;
        case 'd': dir = optarg; break;
        case 'o': options = optarg; break;
        default: MPI_Abort(MPI_COMM_WORLD, 2);
        }
    }
    if (optind != argc - 1 || files < 0 || transfer == 0) {
        if (rank == 0)
            fprintf(stderr, "usage: %s [-n FILES] [-b BYTES] [-t TRANSFER] [-d DIR] [-o MOUNT-OPTIONS] SOURCE\n", argv[0]);
        MPI_Finalize();
        return 2;
    }
    /* Mount after MPI_Init, because MPI_Init may fork. */
    struct nacre_fs *fs = nacre_mount(argv[optind], options);
    if (fs == NULL) {
        fprintf(stderr, "rank %d: %s\n", rank, nacre_mount_error());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    if (rank == 0) {
        printf("libnacre %s, %d ranks: %d files, %zu bytes in transfers of %zu each\n", nacre_version(), ranks, files, size,
               transfer);
        if (nacre_mkdir(fs, dir, 0775) < 0)
            fail("mkdir", dir);
    }
    run_metadata_steps(fs, dir, files);
    run_data_steps(fs, dir, size, transfer);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0 && nacre_rmdir(fs, dir) < 0)
        fail("rmdir", dir);
    if (nacre_umount(fs) < 0)
        fail("umount", dir);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        printf("done\n");
        fflush(stdout);
    }
    MPI_Finalize();
    return 0;
}
