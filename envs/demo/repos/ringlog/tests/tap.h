/* Just enough TAP for the tests. */
#ifndef TAP_H
#define TAP_H

#include <stdio.h>

static int tap_count, tap_failures;

static void ok(int passed, const char *description)
{
    tap_count++;
    tap_failures += !passed;
    printf("%s %d - %s\n", passed ? "ok" : "not ok", tap_count, description);
    fflush(stdout);
}

static int done(void)
{
    printf("1..%d\n", tap_count);
    return tap_failures != 0;
}

#endif
