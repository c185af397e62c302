/* Print the last lines of standard input that fit into a ring of a given size. */
#include "ring.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char line[RING_MAXLEN + 2];

int main(int argc, char **argv)
{
    struct ring ring;
    unsigned char *memory;
    long size = argc == 2 ? strtol(argv[1], NULL, 10) : 0;
    int length;

    if (size < RING_PREFIX) {
        fprintf(stderr, "usage: lastlines SIZE < file\n");
        return 2;
    }
    memory = malloc((size_t)size);
    if (memory == NULL) {
        perror("lastlines");
        return 1;
    }
    ring_init(&ring, memory, (size_t)size, RING_OVERWRITE);
    while (fgets(line, sizeof line, stdin) != NULL) {
        if (ring_put(&ring, line, strcspn(line, "\n")) != 0)
            fprintf(stderr, "lastlines: line too long, left out\n");
    }
    while ((length = ring_get(&ring, line, sizeof line)) >= 0)
        printf("%.*s\n", length, line);
    free(memory);
    return 0;
}
