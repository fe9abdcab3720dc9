/* A small NBD load client on libnbd, for what fio's engine can't ask: writes with FUA.
 *
 * One connection, a fixed number of requests in flight, random 4 KiB blocks, for a fixed time. It
 * also does plain reads, plain writes, and a write followed by a flush, so that its figures can be
 * held against fio's. It sleeps in poll(2) between completions like fio does; with --spin it polls
 * without sleeping, which shows what the client's own wake-ups cost.
 *
 * Prints one line of JSON. Built by `cargo xtask bench block`: cc -O2 nbd-fua.c -lnbd
 */

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <libnbd.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum mode { MODE_READ, MODE_WRITE, MODE_FUA, MODE_FLUSH };

/* Latencies in buckets of about 3 %: 32 per power of two. */
#define SUB_BITS 5
#define BUCKETS (64 << SUB_BITS)

struct histogram {
    uint64_t counts[BUCKETS];
    uint64_t total;
};

static void record(struct histogram *h, uint64_t ns)
{
    uint64_t value = ns ? ns : 1;
    int top = 63 - __builtin_clzll(value);
    uint64_t bucket = value;
    if (top >= SUB_BITS) {
        int shift = top - SUB_BITS;
        bucket = ((uint64_t)(shift + 1) << SUB_BITS) + ((value >> shift) - (1u << SUB_BITS));
    }
    h->counts[bucket]++;
    h->total++;
}

static double bucket_ns(uint64_t bucket)
{
    if (bucket < (1u << SUB_BITS))
        return (double)bucket;
    int shift = (int)(bucket >> SUB_BITS) - 1;
    uint64_t low = ((bucket & ((1u << SUB_BITS) - 1)) + (1u << SUB_BITS)) << shift;
    return (double)low + (double)(1ull << shift) / 2;
}

static double percentile(const struct histogram *h, double part)
{
    uint64_t seen = 0;
    for (uint64_t bucket = 0; bucket < BUCKETS; bucket++) {
        seen += h->counts[bucket];
        if (seen > 0 && (double)seen >= part * (double)h->total)
            return bucket_ns(bucket);
    }
    return 0;
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* xorshift64*: the sequence of offsets depends on the seed alone. */
static uint64_t random_state;

static uint64_t next_random(void)
{
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * 2685821657736338717u;
}

struct slot {
    char *buffer;
    uint64_t started_ns;
    bool flushing;
    bool busy;
};

static struct nbd_handle *nbd;
static enum mode mode = MODE_FUA;
static uint64_t block_bytes = 4096, region_blocks;
static uint64_t deadline_ns, operations, errors;
static struct histogram first_step, flush_step;

static void die(const char *what)
{
    fprintf(stderr, "nbd-fua: %s: %s\n", what, nbd_get_error() ? nbd_get_error() : strerror(errno));
    exit(1);
}

/* Called inside libnbd when the reply to a command has arrived. It must not issue another one. */
static int completed(void *user_data, int *error)
{
    struct slot *slot = user_data;
    uint64_t took_ns = now_ns() - slot->started_ns;
    if (*error) {
        errors++;
        slot->flushing = false;
    } else if (mode == MODE_FLUSH && !slot->flushing) {
        record(&first_step, took_ns);
        slot->flushing = true; /* the main loop sends the flush */
    } else {
        record(slot->flushing ? &flush_step : &first_step, took_ns);
        slot->flushing = false;
        operations++;
    }
    slot->busy = false;
    return 1; /* retire the command */
}

static void submit(struct slot *slot)
{
    nbd_completion_callback callback = { .callback = completed, .user_data = slot };
    int64_t cookie;
    slot->busy = true;
    slot->started_ns = now_ns();
    if (slot->flushing) {
        cookie = nbd_aio_flush(nbd, callback, 0);
    } else {
        uint64_t offset = next_random() % region_blocks * block_bytes;
        uint64_t stamp = next_random();
        memcpy(slot->buffer, &stamp, sizeof stamp);
        if (mode == MODE_READ)
            cookie = nbd_aio_pread(nbd, slot->buffer, block_bytes, offset, callback, 0);
        else
            cookie = nbd_aio_pwrite(nbd, slot->buffer, block_bytes, offset, callback,
                                    mode == MODE_FUA ? LIBNBD_CMD_FLAG_FUA : 0);
    }
    if (cookie == -1)
        die("sending a request");
}

static enum mode parse_mode(const char *text)
{
    if (!strcmp(text, "read")) return MODE_READ;
    if (!strcmp(text, "write")) return MODE_WRITE;
    if (!strcmp(text, "fua")) return MODE_FUA;
    if (!strcmp(text, "flush")) return MODE_FLUSH;
    fprintf(stderr, "nbd-fua: no mode %s: read, write, fua or flush\n", text);
    exit(2);
}

int main(int argc, char **argv)
{
    const char *uri = NULL, *mode_name = "fua";
    int depth = 1, spin = 0;
    double seconds = 3;
    uint64_t region_bytes = 0;
    random_state = 0x9e3779b97f4a7c15u;
    static const struct option options[] = {
        { "uri", required_argument, NULL, 'u' },     { "mode", required_argument, NULL, 'm' },
        { "depth", required_argument, NULL, 'd' },   { "seconds", required_argument, NULL, 't' },
        { "region", required_argument, NULL, 'r' },  { "seed", required_argument, NULL, 's' },
        { "spin", no_argument, NULL, 'p' },          { 0 },
    };
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (option) {
        case 'u': uri = optarg; break;
        case 'm': mode_name = optarg; break;
        case 'd': depth = atoi(optarg); break;
        case 't': seconds = atof(optarg); break;
        case 'r': region_bytes = strtoull(optarg, NULL, 10); break;
        case 's': random_state ^= strtoull(optarg, NULL, 10) * 0xbf58476d1ce4e5b9u; break;
        case 'p': spin = 1; break;
        default: return 2;
        }
    }
    mode = parse_mode(mode_name);
    if (!uri || depth < 1 || depth > 1024 || seconds <= 0) {
        fprintf(stderr, "nbd-fua: needs --uri, a --depth of 1 to 1024 and positive --seconds\n");
        return 2;
    }

    nbd = nbd_create();
    if (!nbd || nbd_connect_uri(nbd, uri) == -1)
        die("connecting");
    int64_t size = nbd_get_size(nbd);
    if (size == -1)
        die("asking for the size");
    if (region_bytes == 0 || region_bytes > (uint64_t)size)
        region_bytes = (uint64_t)size;
    region_blocks = region_bytes / block_bytes;
    if (region_blocks == 0) {
        fprintf(stderr, "nbd-fua: the export is smaller than a block\n");
        return 1;
    }

    struct slot *slots = calloc((size_t)depth, sizeof *slots);
    if (!slots)
        die("allocating");
    for (int i = 0; i < depth; i++) {
        if (posix_memalign((void **)&slots[i].buffer, 4096, block_bytes))
            die("allocating");
        for (uint64_t at = 0; at < block_bytes; at += 8) {
            uint64_t value = next_random();
            memcpy(slots[i].buffer + at, &value, 8);
        }
    }

    uint64_t start_ns = now_ns();
    deadline_ns = start_ns + (uint64_t)(seconds * 1e9);
    for (;;) {
        bool over = now_ns() >= deadline_ns, any_busy = false;
        for (int i = 0; i < depth; i++) {
            /* A write that was answered before the deadline still gets its flush. */
            if (!slots[i].busy && (!over || slots[i].flushing))
                submit(&slots[i]);
            any_busy |= slots[i].busy;
        }
        if (!any_busy)
            break;
        if (nbd_poll(nbd, spin ? 0 : 1000) == -1)
            die("waiting for replies");
    }
    double took = (double)(now_ns() - start_ns) / 1e9;
    nbd_shutdown(nbd, 0);
    nbd_close(nbd);

    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    double cpu = (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                 (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
    printf("{\"mode\": \"%s\", \"depth\": %d, \"spin\": %s, \"seconds\": %.6f, "
           "\"operations\": %" PRIu64 ", \"errors\": %" PRIu64 ", \"p50_ns\": %.0f, "
           "\"p99_ns\": %.0f, \"flush_p50_ns\": %.0f, \"flush_p99_ns\": %.0f, "
           "\"cpu_seconds\": %.6f}\n",
           mode_name, depth, spin ? "true" : "false", took, operations, errors,
           percentile(&first_step, 0.50), percentile(&first_step, 0.99),
           percentile(&flush_step, 0.50), percentile(&flush_step, 0.99), cpu);
    return errors ? 1 : 0;
}
