/*
 * Assertions of the test programs. EXPECT: a condition holds. FAILS: a call returns -1 and sets
 * errno to `error`.
 */
#ifndef EXPECT_H
#define EXPECT_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT(condition)                                                                                  \
    do {                                                                                                   \
        if (!(condition)) {                                                                                \
            fprintf(stderr, "%s:%d: expected: %s (errno %d: %s)\n", __FILE__, __LINE__, #condition, errno, strerror(errno)); \
            exit(1);                                                                                       \
        }                                                                                                  \
    } while (0)

#define FAILS(call, error)                                                                                 \
    do {                                                                                                   \
        errno = 0;                                                                                         \
        long expect_returned = (long)(call);                                                               \
        if (expect_returned != -1 || errno != (error)) {                                                   \
            fprintf(stderr, "%s:%d: %s: returned %ld, errno %d (%s), not %s\n", __FILE__, __LINE__, #call, expect_returned, \
                    errno, strerror(errno), #error);                                                       \
            exit(1);                                                                                       \
        }                                                                                                  \
    } while (0)

#endif
