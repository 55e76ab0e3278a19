/* The row of one dense array in one pass: min, max, sum, sum of squares, zeros, nonfinite, count (rows.py).
 *
 * Plain C11 that compilers vectorise: LANES independent accumulators, so no sum has to be reordered and no flag like
 * -ffast-math is needed (linking with that one would switch denormals off for the whole process). On x86-64 the loops
 * exist three times, for AVX-512, AVX2 and the baseline, and the processor decides at run time: a library that was built
 * on one machine runs on another.
 *
 * The pass has no masks. A NaN, an infinity or an overflow shows in the sums, and then exact() looks at each value.
 *
 * Precision. float32 sums are made over one BLOCK only and added in double. They are sums of x - shift, where shift is
 * the mean of the block before (of the first values, for the first one): variance = E[x²] - E[x]² would otherwise lose
 * all digits where the mean is 1000 times the standard deviation. A bad shift costs nothing that matters: it is the mean
 * of a part of the same data, so data far away from it has a large variance.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define ABI 1     /* kernel.py loads no other */
#define LANES 64  /* four registers of AVX-512, eight of AVX2, sixteen of NEON and SSE */
#define BLOCK 4096
#define AHEAD 4096 /* bytes asked for before their turn: 1.35 passes of sum() at 1e7 values without, 1.0 with */
#define LINE 64    /* bytes of a cache line */
#define PEEK 256  /* values whose mean is the first shift */
#define TINY 1e-30 /* a mean square below is denormal in float32, or lost: exact() */

typedef struct { double low, high, sum, square, zeros, nonfinite; } Stats;

#define INLINE static inline __attribute__((always_inline))

INLINE float from_float(float x) { return x; }
INLINE double from_double(double x) { return x; }

INLINE float bits(uint32_t x)
{
    float value;
    memcpy(&value, &x, sizeof value);
    return value;
}

INLINE float from_bfloat16(uint16_t x) { return bits((uint32_t)x << 16); }

/* Exact for zeros, denormals and normal values. What is infinite or NaN comes out as 65536 or more. */
INLINE float from_half(uint16_t x)
{
    return bits((uint32_t)(x & 0x8000) << 16 | (uint32_t)(x & 0x7fff) << 13) * 0x1p112f;
}

INLINE double exactly_half(uint16_t x)
{
    float value = from_half(x);
    return fabsf(value) < 65536.0f ? value : x & 0x3ff ? NAN : copysignf(INFINITY, value);
}

#define STEP(v)                                     \
    do {                                            \
        low[j] = v < low[j] ? v : low[j];           \
        high[j] = v > high[j] ? v : high[j];        \
        nonzero[j] += v != 0;                       \
        v -= shift;                                 \
        sum[j] += v;                                \
        square[j] += v * v;                         \
    } while (0)

/* One pass over `x`. NaN is in the sums, and in neither low nor high. */
#define FAST(NAME, TYPE, REAL, LOAD, COUNTER)                                             \
    INLINE Stats NAME(const TYPE *restrict x, int64_t n)                                  \
    {                                                                                     \
        REAL low[LANES], high[LANES], sum[LANES], square[LANES];                          \
        COUNTER nonzero[LANES];                                                           \
        for (int j = 0; j < LANES; j++) {                                                 \
            low[j] = (REAL)INFINITY;                                                      \
            high[j] = -(REAL)INFINITY;                                                    \
            nonzero[j] = 0;                                                               \
        }                                                                                 \
        double peek = 0, total = 0, squares = 0;                                          \
        int64_t first = n < PEEK ? n : PEEK;                                              \
        for (int64_t i = 0; i < first; i++)                                               \
            peek += LOAD(x[i]);                                                           \
        REAL shift = n && isfinite(peek) ? (REAL)(peek / (double)first) : 0;              \
        for (int64_t start = 0; start < n; start += BLOCK) {                              \
            int64_t size = n - start < BLOCK ? n - start : BLOCK, i = 0;                  \
            const TYPE *restrict block = x + start;                                       \
            for (int j = 0; j < LANES; j++)                                               \
                sum[j] = square[j] = 0;                                                   \
            for (; i + LANES <= size; i += LANES) {                                       \
                for (int j = 0; j < LANES; j += LINE / (int)sizeof(TYPE))                 \
                    __builtin_prefetch((const char *)(block + i + j) + AHEAD);            \
                for (int j = 0; j < LANES; j++) {                                         \
                    REAL v = LOAD(block[i + j]);                                          \
                    STEP(v);                                                              \
                }                                                                         \
            }                                                                             \
            for (int j = 0; j < (int)(size - i); j++) {                                   \
                REAL v = LOAD(block[i + j]);                                              \
                STEP(v);                                                                  \
            }                                                                             \
            for (int half = LANES / 2; half; half /= 2)                                   \
                for (int j = 0; j < half; j++) {                                          \
                    sum[j] += sum[j + half];                                              \
                    square[j] += square[j + half];                                        \
                }                                                                         \
            double s = shift, t = sum[0], count = (double)size;                           \
            total += t + s * count;                                                       \
            squares += square[0] + s * (2 * t + s * count);                               \
            double mean = s + t / count;                                                  \
            shift = isfinite(mean) && fabs(mean) < 1e38 ? (REAL)mean : 0;                 \
        }                                                                                 \
        Stats all = {(double)low[0], (double)high[0], total, squares, (double)n, 0};      \
        for (int j = 0; j < LANES; j++) {                                                 \
            all.low = low[j] < all.low ? low[j] : all.low;                                \
            all.high = high[j] > all.high ? high[j] : all.high;                           \
            all.zeros -= (double)nonzero[j];                                              \
        }                                                                                 \
        return all;                                                                       \
    }

FAST(fast_float, float, float, from_float, int32_t)
FAST(fast_double, double, double, from_double, int64_t)
FAST(fast_bfloat16, uint16_t, float, from_bfloat16, int32_t)
FAST(fast_half, uint16_t, float, from_half, int32_t)

/* Two or three times as slow: each value asked whether it is finite, and all sums in double. */
#define EXACT(NAME, TYPE, LOAD)                                                           \
    INLINE Stats NAME(const TYPE *restrict x, int64_t n)                                  \
    {                                                                                     \
        enum { FEW = 16 };                                                                \
        double low[FEW], high[FEW], sum[FEW], square[FEW], zero[FEW], finite[FEW];        \
        for (int j = 0; j < FEW; j++) {                                                   \
            low[j] = INFINITY;                                                            \
            high[j] = -INFINITY;                                                          \
            sum[j] = square[j] = zero[j] = finite[j] = 0;                                 \
        }                                                                                 \
        for (int64_t i = 0; i < n; i += FEW)                                              \
            for (int j = 0; j < (n - i < FEW ? (int)(n - i) : FEW); j++) {                \
                double v = LOAD(x[i + j]);                                                \
                int good = fabs(v) < INFINITY;                                            \
                low[j] = good && v < low[j] ? v : low[j];                                 \
                high[j] = good && v > high[j] ? v : high[j];                              \
                zero[j] += v == 0;                                                        \
                finite[j] += good;                                                        \
                v = good ? v : 0;                                                         \
                sum[j] += v;                                                              \
                square[j] += v * v;                                                       \
            }                                                                             \
        Stats all = {low[0], high[0], 0, 0, 0, (double)n};                                \
        for (int j = 0; j < FEW; j++) {                                                   \
            all.low = low[j] < all.low ? low[j] : all.low;                                \
            all.high = high[j] > all.high ? high[j] : all.high;                           \
            all.sum += sum[j];                                                            \
            all.square += square[j];                                                      \
            all.zeros += zero[j];                                                         \
            all.nonfinite -= finite[j];                                                   \
        }                                                                                 \
        return all;                                                                       \
    }

EXACT(exact_float, float, (double)from_float)
EXACT(exact_double, double, from_double)
EXACT(exact_bfloat16, uint16_t, (double)from_bfloat16)
EXACT(exact_half, uint16_t, exactly_half)

enum { FLOAT, DOUBLE, BFLOAT16, HALF }; /* as in kernel.py */

INLINE int doubtful(Stats s, int64_t n, double limit)
{
    return !(isfinite(s.sum) && isfinite(s.square) && s.high < limit && s.low > -limit) ||
           ((s.low != 0 || s.high != 0) && s.square < TINY * (double)n);
}

INLINE Stats measure(const void *x, int64_t n, int type)
{
    Stats s;
    switch (type) {
    case FLOAT:
        s = fast_float(x, n);
        return doubtful(s, n, INFINITY) ? exact_float(x, n) : s;
    case DOUBLE:
        s = fast_double(x, n);
        return doubtful(s, n, INFINITY) ? exact_double(x, n) : s;
    case BFLOAT16:
        s = fast_bfloat16(x, n);
        return doubtful(s, n, INFINITY) ? exact_bfloat16(x, n) : s;
    default:
        s = fast_half(x, n);
        return doubtful(s, n, 65536) ? exact_half(x, n) : s;
    }
}

typedef Stats Measure(const void *, int64_t, int);

static Stats measure_baseline(const void *x, int64_t n, int type) { return measure(x, n, type); }

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static Stats measure_avx2(const void *x, int64_t n, int type)
{
    return measure(x, n, type);
}
__attribute__((target("avx512f"))) static Stats measure_avx512(const void *x, int64_t n, int type)
{
    return measure(x, n, type);
}
static const struct { const char *name; Measure *measure; } LEVELS[] = {
    {"baseline", measure_baseline}, {"AVX2", measure_avx2}, {"AVX-512", measure_avx512}};
static int best(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f")                                    ? 2
           : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? 1
                                                                                : 0;
}
#else
static const struct { const char *name; Measure *measure; } LEVELS[] = {{"baseline", measure_baseline}};
static int best(void) { return 0; }
#endif

/* Set once, when the library is loaded; only tests choose another. */
static int level = 0;

int torchtap_abi(void) { return ABI; }

/* Use the instructions of `wanted`, or the best that the processor has (also for -1). Gives what is used. */
int torchtap_level(int wanted)
{
    int highest = best();
    level = wanted < 0 || wanted > highest ? highest : wanted;
    return level;
}

const char *torchtap_level_name(void) { return LEVELS[level].name; }

/* Write the row of `n` values at `x`, each of which stands for `times` equal ones. */
void torchtap_row(const void *x, int64_t n, int type, int64_t times, int zeros, double *row)
{
    Stats s = LEVELS[level].measure(x, n, type);
    double many = (double)times, finite = (double)n - s.nonfinite;
    row[0] = finite > 0 ? s.low : NAN;
    row[1] = finite > 0 ? s.high : NAN;
    row[2] = s.sum * many;
    row[3] = s.square * many;
    row[4] = zeros ? s.zeros * many : NAN;
    row[5] = s.nonfinite * many;
    row[6] = (double)n * many;
    row[7] = 0;
}
