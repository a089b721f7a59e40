// SPDX-License-Identifier: Apache-2.0
//
// Symmetric matrices (M,M) as panels, half as many numbers: for every ROWS points m, all points j >= m by these ROWS. So
// ROWS neighbours of a row of the lower triangle follow each other. M is rounded up to Mpad, a multiple of ROWS; the ROWS x
// ROWS elements at the diagonal are all there.

static inline long panel_start(long Mpad, long m) { return m * Mpad - m * (m - ROWS) / 2; }

static inline long panels_size(long M) { return panel_start(rounded(M, ROWS), rounded(M, ROWS)); }

// The place of the element (i, j), for i >= j - j % ROWS; that of (i + 1, j) is ROWS after it
static inline long panel_place(long Mpad, long i, long j) {
    const long m = j - j % ROWS;
    return panel_start(Mpad, m) + (i - m) * ROWS + j - m;
}

// Panels of the symmetric part of a matrix, or of ones if it is null, with zeros as padding
static inline void to_panels(long M, const double *matrix, double *panels) {
    for (long m = 0; m < M; m += ROWS)
        for (long j = m; j < rounded(M, ROWS); j++)
            for (long i = m; i < m + ROWS; i++)
                *panels++ = i >= M || j >= M ? 0 : matrix ? (matrix[j * M + i] + matrix[i * M + j]) / 2 : 1;
}

static inline void to_matrix(long M, const double *panels, double *matrix) {
    for (long m = 0; m < M; m += ROWS)
        for (long j = m; j < rounded(M, ROWS); j++)
            for (long i = m; i < m + ROWS; i++, panels++)
                if (i < M && j < M) matrix[j * M + i] = matrix[i * M + j] = *panels;
}
