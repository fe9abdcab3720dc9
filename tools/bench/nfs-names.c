/* Makes, renames and removes a few files over NFSv3, one call after the other with rests between, and prints when each call was sent
 * and when its answer was there: seconds of the monotonic clock, which `perf record -k CLOCK_MONOTONIC` counts by, too. So what a
 * server does at its disk can be laid beside each call.
 *
 * cc -O2 -o nfs-names nfs-names.c -lnfs; ./nfs-names 'nfs://127.0.0.1/export?version=3&nfsport=2049&mountport=2049' [COUNT]
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

/* Its header needs what stands above. */
#include <nfsc/libnfs.h>

static const struct timespec REST = {.tv_nsec = 50 * 1000 * 1000};

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void must(int result, const char *doing, struct nfs_context *nfs) {
    if (result < 0) {
        fprintf(stderr, "nfs-names: %s: %s\n", doing, nfs_get_error(nfs));
        exit(1);
    }
}

int main(int count, char **arguments) {
    struct nfs_context *nfs = nfs_init_context();
    struct nfs_url *url = count < 2 ? NULL : nfs_parse_url_dir(nfs, arguments[1]);
    if (!url) {
        fprintf(stderr, "usage: nfs-names URL [COUNT]\n");
        return 2;
    }
    must(nfs_mount(nfs, url->server, url->path), "mounting", nfs);
    int files = count > 2 ? atoi(arguments[2]) : 5;
    char one[64], other[64];
    for (int file = 0; file < files; file++) {
        struct nfsfh *handle;
        snprintf(one, sizeof one, "/one-%d", file);
        snprintf(other, sizeof other, "/other-%d", file);
        must(nfs_creat(nfs, one, 0644, &handle), "creating", nfs);
        must(nfs_close(nfs, handle), "closing", nfs);
        /* So that whatever the creation has begun is over. */
        nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
        double began = now();
        must(nfs_rename(nfs, one, other), "renaming", nfs);
        double ended = now();
        printf("%.6f %.6f rename\n", began, ended);
        nanosleep(&REST, NULL);
        began = now();
        must(nfs_unlink(nfs, other), "removing", nfs);
        ended = now();
        printf("%.6f %.6f remove\n", began, ended);
        nanosleep(&REST, NULL);
    }
    nfs_destroy_url(url);
    nfs_destroy_context(nfs);
    return 0;
}
