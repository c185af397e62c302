#include "ring.h"
#include "tap.h"

#include <string.h>

int main(void)
{
    unsigned char memory[32];
    char out[32];
    struct ring ring;

    ring_init(&ring, memory, sizeof memory, RING_REFUSE);
    ok(ring_get(&ring, out, sizeof out) == RING_EMPTY, "a new ring is empty");
    ok(ring_put(&ring, "hello", 5) == 0, "put a record");
    ok(ring_used(&ring) == 7, "prefixes count as used");
    ok(ring_peek(&ring, out, sizeof out) == 5 && ring_count(&ring) == 1, "peek leaves the record");
    ok(ring_get(&ring, out, sizeof out) == 5 && memcmp(out, "hello", 5) == 0, "get the record");
    ok(ring_count(&ring) == 0 && ring_used(&ring) == 0, "nothing is left");

    ring_put(&ring, "a", 1);
    ring_put(&ring, "", 0);
    ring_put(&ring, "ccc", 3);
    ok(ring_get(&ring, out, sizeof out) == 1 && ring_get(&ring, out, sizeof out) == 0 &&
           ring_get(&ring, out, sizeof out) == 3,
       "records come out in order");

    ring_init(&ring, memory, sizeof memory, RING_REFUSE);
    ring_put(&ring, "0123456789", 10);
    ring_put(&ring, "0123456789", 10);
    ok(ring_put(&ring, "0123456789", 10) == RING_FULL && ring_count(&ring) == 2, "a full ring refuses");

    ring_init(&ring, memory, sizeof memory, RING_OVERWRITE);
    ring_put(&ring, "first 6789", 10);
    ring_put(&ring, "second 789", 10);
    ring_put(&ring, "third 6789", 10);
    ok(ring_get(&ring, out, sizeof out) == 10 && memcmp(out, "second", 6) == 0, "the oldest is overwritten");
    return done();
}
