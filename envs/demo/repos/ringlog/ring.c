#include "ring.h"

#include <string.h>

void ring_init(struct ring *ring, void *memory, size_t size, enum ring_mode mode)
{
    ring->memory = memory;
    ring->size = size;
    ring->head = 0;
    ring->tail = 0;
    ring->count = 0;
    ring->mode = mode;
}

size_t ring_used(const struct ring *ring)
{
    if (ring->tail >= ring->head)
        return ring->tail - ring->head;
    return ring->size - ring->head + ring->tail;
}

size_t ring_count(const struct ring *ring)
{
    return ring->count;
}

/* Copy between the ring, from `at` on, and plain memory; the ring may wrap around. */
static void copy_in(struct ring *ring, size_t at, const unsigned char *data, size_t length)
{
    size_t first = ring->size - at;

    if (first > length)
        first = length;
    memcpy(ring->memory + at, data, first);
    memcpy(ring->memory, data + first, length - first);
}

static void copy_out(const struct ring *ring, size_t at, unsigned char *buffer, size_t length)
{
    size_t first = ring->size - at;

    if (first > length)
        first = length;
    memcpy(buffer, ring->memory + at, first);
    memcpy(buffer + first, ring->memory, length - first);
}

static size_t record_length(const struct ring *ring)
{
    const unsigned char *prefix = ring->memory + ring->head;

    return prefix[0] | (size_t)prefix[1] << 8;
}

static void drop(struct ring *ring)
{
    ring->head = (ring->head + RING_PREFIX + record_length(ring)) % ring->size;
    ring->count--;
}

int ring_put(struct ring *ring, const void *data, size_t length)
{
    size_t needed = RING_PREFIX + length;

    if (needed > ring->size - ring_used(ring)) {
        if (ring->mode == RING_REFUSE)
            return RING_FULL;
        drop(ring);
    }
    ring->memory[ring->tail] = length & 0xff;
    ring->memory[ring->tail + 1] = length >> 8 & 0xff;
    copy_in(ring, (ring->tail + RING_PREFIX) % ring->size, data, length);
    ring->tail = (ring->tail + needed) % ring->size;
    ring->count++;
    return 0;
}

int ring_peek(const struct ring *ring, void *buffer, size_t capacity)
{
    size_t length;

    if (ring->head == ring->tail)
        return RING_EMPTY;
    length = record_length(ring);
    if (length > capacity)
        return RING_SMALL;
    copy_out(ring, (ring->head + RING_PREFIX) % ring->size, buffer, length);
    return (int)length;
}

int ring_get(struct ring *ring, void *buffer, size_t capacity)
{
    int length = ring_peek(ring, buffer, capacity);

    if (length != RING_EMPTY)
        drop(ring);
    return length;
}
