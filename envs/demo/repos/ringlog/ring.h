#ifndef RING_H
#define RING_H

#include <stddef.h>

/* A ring buffer of records; see README.md. */

enum ring_mode { RING_REFUSE, RING_OVERWRITE };

/* Results of the functions below that are not lengths. */
#define RING_EMPTY (-1)
#define RING_SMALL (-2)
#define RING_FULL (-3)
#define RING_TOOBIG (-4)

#define RING_PREFIX 2
#define RING_MAXLEN 0xffff

struct ring {
    unsigned char *memory;
    size_t size;
    size_t head; /* where the oldest record begins */
    size_t tail; /* where the next record will begin */
    size_t count;
    enum ring_mode mode;
};

void ring_init(struct ring *ring, void *memory, size_t size, enum ring_mode mode);

/* Append a record: 0, RING_FULL or RING_TOOBIG. */
int ring_put(struct ring *ring, const void *data, size_t length);

/* Take out or look at the oldest record: its length, RING_EMPTY or RING_SMALL. */
int ring_get(struct ring *ring, void *buffer, size_t capacity);
int ring_peek(const struct ring *ring, void *buffer, size_t capacity);

size_t ring_used(const struct ring *ring);
size_t ring_count(const struct ring *ring);

#endif
