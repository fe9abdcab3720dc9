/* What a durable write costs with its journal record beside it, by how it is made durable.
 *
 * An operation is 4 KiB of data at a random place and 4 KiB of a journal in order, both in flight at once, as a core of Flagstone has
 * them. A group is DEPTH such data writes with one record of the journal: group commit. Ways, in turn in one run:
 *
 *   fdatasync  both are written, then one fdatasync on the thread that waits for them
 *   ring       both are written, then one FSYNC (datasync) through the ring, which goes to one of the kernel's workers
 *   dsync      each of the writes has RWF_DSYNC, and nothing is flushed
 *   none       both are written and nothing is durable: what the device alone takes
 *
 * cc -O2 -o flush-ways flush-ways.c -luring; ./flush-ways FILE SECONDS ROUNDS [DEPTH ...]
 * FILE has to exist and to have been written in full. Prints medians over the rounds.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK = 4096, DEPTH_MAX = 128, ROUNDS_MAX = 99, JOURNAL_BLOCKS = 4096 };
enum way { FDATASYNC, RING, DSYNC, NONE, WAYS };
static const char *const NAMES[WAYS] = {"fdatasync", "ring", "dsync", "none"};

static void fail(const char *doing, int error) {
    fprintf(stderr, "flush-ways: %s: %s\n", doing, strerror(error));
    exit(1);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* xorshift64*: places that neither a cache nor a drive can foresee. */
static uint64_t next(uint64_t *state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 2685821657736338717ULL;
}

static void put(struct io_uring *ring, int file, const char *from, uint64_t block, int flags) {
    struct io_uring_sqe *entry = io_uring_get_sqe(ring);
    io_uring_prep_write(entry, file, from, BLOCK, block * BLOCK);
    entry->rw_flags = flags;
}

static void wait_for(struct io_uring *ring, unsigned count) {
    int error = io_uring_submit_and_wait(ring, count);
    if (error < 0)
        fail("submitting", -error);
    for (unsigned done = 0; done < count; done++) {
        struct io_uring_cqe *answer;
        error = io_uring_wait_cqe(ring, &answer);
        if (error < 0)
            fail("waiting", -error);
        if (answer->res < 0)
            fail("a transfer", -answer->res);
        io_uring_cqe_seen(ring, answer);
    }
}

/* Durable writes a second. */
static double measure(struct io_uring *ring, int file, uint64_t blocks, const char *data, enum way way, unsigned depth,
                      double seconds, uint64_t *state) {
    uint64_t groups = 0;
    double started = now(), took;
    int flags = way == DSYNC ? RWF_DSYNC : 0;
    do {
        for (unsigned index = 0; index < depth; index++)
            put(ring, file, data, JOURNAL_BLOCKS + next(state) % (blocks - JOURNAL_BLOCKS), flags);
        put(ring, file, data, groups % JOURNAL_BLOCKS, flags);
        wait_for(ring, depth + 1);
        if (way == FDATASYNC && fdatasync(file) != 0)
            fail("fdatasync", errno);
        if (way == RING) {
            io_uring_prep_fsync(io_uring_get_sqe(ring), file, IORING_FSYNC_DATASYNC);
            wait_for(ring, 1);
        }
        groups++;
        took = now() - started;
    } while (took < seconds);
    return (double)(groups * depth) / took;
}

static int ascending(const void *left, const void *right) {
    double difference = *(const double *)left - *(const double *)right;
    return (difference > 0) - (difference < 0);
}

int main(int count, char **words) {
    if (count < 4) {
        fprintf(stderr, "flush-ways FILE SECONDS ROUNDS [DEPTH ...]\n");
        return 2;
    }
    int file = open(words[1], O_RDWR | O_DIRECT);
    if (file < 0)
        fail(words[1], errno);
    struct stat about;
    if (fstat(file, &about) != 0)
        fail(words[1], errno);
    uint64_t blocks = (uint64_t)about.st_size / BLOCK;
    double seconds = atof(words[2]);
    int rounds = atoi(words[3]);
    if (rounds < 1 || rounds > ROUNDS_MAX || seconds <= 0 || blocks < 2 * JOURNAL_BLOCKS) {
        fprintf(stderr, "flush-ways: 1 to %d rounds, some seconds, and a file of at least %d MiB\n", ROUNDS_MAX,
                2 * JOURNAL_BLOCKS * BLOCK >> 20);
        return 2;
    }
    struct io_uring ring;
    int error = io_uring_queue_init(2 * DEPTH_MAX, &ring, 0);
    if (error < 0)
        fail("making a ring", -error);
    void *data;
    if (posix_memalign(&data, BLOCK, BLOCK) != 0)
        fail("taking memory", ENOMEM);
    memset(data, 0x5a, BLOCK);
    uint64_t state = 88172645463325252ULL;
    for (int word = 4; word < count; word++) {
        unsigned depth = (unsigned)atoi(words[word]);
        if (depth < 1 || depth > DEPTH_MAX) {
            fprintf(stderr, "flush-ways: a depth is 1 to %d\n", DEPTH_MAX);
            return 2;
        }
        double rates[WAYS][ROUNDS_MAX];
        for (int round = 0; round < rounds; round++)
            for (int way = 0; way < WAYS; way++)
                rates[way][round] = measure(&ring, file, blocks, data, way, depth, seconds, &state);
        for (int way = 0; way < WAYS; way++) {
            qsort(rates[way], (size_t)rounds, sizeof rates[way][0], ascending);
            printf("depth %u %s: %.0f durable writes a second (%.0f to %.0f)\n", depth, NAMES[way], rates[way][rounds / 2],
                   rates[way][0], rates[way][rounds - 1]);
        }
    }
    return 0;
}
