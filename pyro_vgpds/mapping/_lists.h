// SPDX-License-Identifier: Apache-2.0
//
// Lists of the rows, or of the groups, in which masks differ from all rows or from none: what _groups.h adds up.

// Lists of places, each with start[l + 1] - start[l] of them, and the values by which the numbers there are multiplied. If
// those of each list are `equal`, they are its factor.
typedef struct {
    long lists, *start, *order;
    int equal;
    long *place;
    double *value, *factor;
} lists;

static long lists_size(long most, long length) {
    return rounded((most + 1) * (2 * sizeof(long) + sizeof(double)) + most * length * (sizeof(double) + sizeof(long)), 64);
}

static lists lists_at(char *memory, long most, long length) {
    long *start = (long *)memory;
    double *factor = (double *)(start + 2 * (most + 1)), *value = factor + most + 1;
    start[0] = 0;
    return (lists){0, start, start + most + 1, 1, (long *)(value + most * length), value, factor};
}

// One more list, of the places with a difference between mask and full, of which `size` numbers each are some steps apart
static void add_list(lists *L, long size, const double *mask, long step, const double *full, long full_step) {
    const long first = L->start[L->lists];
    long used = first;
    for (long e = 0; e < size; e++) {
        const double found = mask[e * step] - full[e * full_step];
        if (found == 0) continue;
        L->place[used] = e * BLOCK;
        L->value[used++] = found;
    }
    const double factor = used > first ? L->value[first] : 0;
    for (long u = first; u < used; u++) L->equal &= L->value[u] == factor;
    L->factor[L->lists++] = factor;
    L->start[L->lists] = used;
}

// The order of the lists: by their lengths, so that the processor foresees the ends of loops
static void sort_lists(lists *L) {
    for (long l = 0; l < L->lists; l++) {
        const long count = L->start[l + 1] - L->start[l];
        long i = l;
        for (; i > 0 && L->start[L->order[i - 1] + 1] - L->start[L->order[i - 1]] > count; i--) L->order[i] = L->order[i - 1];
        L->order[i] = l;
    }
}
