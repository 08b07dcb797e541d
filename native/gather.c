#define _GNU_SOURCE
#include "gather.h"

#include <errno.h>
#include <unistd.h>

static int read_all(int file, uint8_t *to, int64_t bytes, int64_t position) {
    while (bytes > 0) {
        ssize_t got = pread(file, to, (size_t)bytes, position);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return 0;
        to += got;
        position += got;
        bytes -= got;
    }
    return 1;
}

int delayd_gather(int file, const struct entry *entries, size_t count, int64_t base, int64_t end,
                  uint8_t *frames, size_t size) {
    size_t done = 0;
    for (size_t first = 0, next; first < count; first = next) {
        int64_t from = entries[first].position, to = from;
        for (next = first; next < count && entries[next].position == to; next++) {
            if (to < base || entries[next].length < 0 || entries[next].length > end - to)
                return 0;
            to += entries[next].length;
        }
        size_t bytes = (size_t)(to - from);
        if (next == first || bytes > size - done ||
            !read_all(file, frames + done, to - from, from - base))
            return 0;
        done += bytes;
    }
    return done == size;
}
