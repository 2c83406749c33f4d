// 3 x 3 convolutions with stride 1 by Winograd's F(4 x 4, 3 x 3), for float and double.
//
// `fedsift/local/stacked/winograd.py` says what it is, and does the same in torch. Here a few tiles at a time are
// transformed, multiplied and transformed back while they are in the processor's cache. Images are pixels with the
// channels of all sites side by side, [rows, height, width, sites * channels]; kernels are [sites, out, 3, 3, in].
// Channels come in whole vectors.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "vectors.h"

namespace {

constexpr int64_t TILE = 6, RESULT = 4, POINTS = TILE * TILE;
constexpr int64_t CACHE = 1 << 20;  // bytes of tiles and products at a time

struct Sizes {
    int64_t rows, height, width, in, out, padding, sites;

    int64_t result_height() const { return height + 2 * padding - 2; }
    int64_t result_width() const { return width + 2 * padding - 2; }
    int64_t high() const { return (result_height() + RESULT - 1) / RESULT; }
    int64_t wide() const { return (result_width() + RESULT - 1) / RESULT; }
    int64_t tiles() const { return rows * high() * wide(); }
};

// Numbers between the 36 points of a table: a line more than they need, so that they do not share one place in the cache.
template <typename Real> inline int64_t pitch(int64_t numbers) { return numbers + Lanes<Real>::count; }

// The transforms' matrices, which winograd.py derives. They are known to the compiler, which leaves out their zeros.
constexpr double OF_TILES[6][6] = {
    {1. / 2, -3. / 4, -1, 3. / 4, 1. / 2, 0},           {0, -1. / 3, 1. / 6, 5. / 6, 1. / 3, 0},
    {0, -1. / 3, 5. / 6, -1. / 6, -1. / 3, 0},          {0, 16. / 15, 8. / 15, -16. / 15, -8. / 15, 0},
    {0, 4. / 15, -8. / 15, -4. / 15, 8. / 15, 0},       {0, 1. / 2, -3. / 4, -1, 3. / 4, 1. / 2},
};
constexpr double OF_KERNELS[6][3] = {
    {2, 0, 0}, {1, 1, 1}, {1, -1, 1}, {2, 1, 1. / 2}, {1. / 8, -1. / 4, 1. / 2}, {0, 0, 2},
};
constexpr double TO_RESULTS[4][6] = {
    {1, 1, 1, 1, 1, 0}, {0, 1, -1, 1. / 2, -2, 0}, {0, 1, 1, 1. / 4, 4, 0}, {0, 1, -1, 1. / 8, -8, 1},
};

struct OfTiles {
    static constexpr int to = 6, from = 6;
    static constexpr double at(int i, int k) { return OF_TILES[i][k]; }
};
struct OfKernels {
    static constexpr int to = 6, from = 3;
    static constexpr double at(int i, int k) { return OF_KERNELS[i][k]; }
};
struct ToResults {
    static constexpr int to = 4, from = 6;
    static constexpr double at(int i, int k) { return TO_RESULTS[i][k]; }
};
template <typename Matrix> struct Transposed {
    static constexpr int to = Matrix::from, from = Matrix::to;
    static constexpr double at(int i, int k) { return Matrix::at(k, i); }
};

// How many tiles fit the cache together with their products, in whole groups of rows; never too few for the kernels.
template <typename Real> inline int64_t tiles_at_once(int64_t channels) {
    return std::max<int64_t>(CACHE / int64_t(POINTS * channels * sizeof(Real)) / 8 * 8, 32);
}

// Memory that a thread keeps: tables of megabytes, asked for anew on every call, would cost more than what fills them.
enum Table { KERNELS, TURNED, TILES, PRODUCTS, TABLES };

template <typename Real> Real *table(Table which, int64_t numbers) {
    static thread_local std::vector<Real> tables[TABLES];
    if (int64_t(tables[which].size()) < numbers) tables[which].resize(numbers);
    return tables[which].data();
}

// matrix * from * matrix', for a vector of channels at a time.
template <typename Real, typename Matrix>
inline void from_both_sides(const Vector<Real> (&from)[Matrix::from][Matrix::from],
                            Vector<Real> (&to)[Matrix::to][Matrix::to]) {
    Vector<Real> half[Matrix::to][Matrix::from];
    UNROLL for (int i = 0; i < Matrix::to; i++)
        UNROLL for (int j = 0; j < Matrix::from; j++) {
            Vector<Real> sum = {};
            UNROLL for (int k = 0; k < Matrix::from; k++)
                if (Matrix::at(i, k) != 0) sum += from[k][j] * Real(Matrix::at(i, k));
            half[i][j] = sum;
        }
    UNROLL for (int i = 0; i < Matrix::to; i++)
        UNROLL for (int j = 0; j < Matrix::to; j++) {
            Vector<Real> sum = {};
            UNROLL for (int k = 0; k < Matrix::from; k++)
                if (Matrix::at(j, k) != 0) sum += half[i][k] * Real(Matrix::at(j, k));
            to[i][j] = sum;
        }
}

// ROWS x COLUMNS vectors of a product: sums over `depth` of a[row, k] * b[k, column].
template <typename Real, int ROWS, int COLUMNS>
inline void product(const Real *a, int64_t a_row, int64_t a_depth, const Real *b, int64_t depth, Real *c, int64_t c_row,
                    bool add) {
    constexpr int lanes = Lanes<Real>::count;
    Vector<Real> sum[ROWS][COLUMNS] = {};
    for (int64_t k = 0; k < depth; k++) {
        Vector<Real> own[COLUMNS];
        UNROLL for (int v = 0; v < COLUMNS; v++) own[v] = load(b + (k * COLUMNS + v) * lanes);
        UNROLL for (int r = 0; r < ROWS; r++) {
            const Real factor = a[r * a_row + k * a_depth];
            UNROLL for (int v = 0; v < COLUMNS; v++) sum[r][v] += own[v] * factor;
        }
    }
    UNROLL for (int r = 0; r < ROWS; r++)
        UNROLL for (int v = 0; v < COLUMNS; v++) {
            Real *to = c + r * c_row + v * lanes;
            store(to, add ? load(to) + sum[r][v] : sum[r][v]);
        }
}

template <typename Real, int COLUMNS>
void product_of_rows(int64_t rows, const Real *a, int64_t a_row, int64_t a_depth, const Real *b, int64_t depth, Real *c,
                     int64_t c_row, bool add) {
    int64_t r = 0;
    for (; r + 8 <= rows; r += 8)
        product<Real, 8, COLUMNS>(a + r * a_row, a_row, a_depth, b, depth, c + r * c_row, c_row, add);
    for (; r + 4 <= rows; r += 4)
        product<Real, 4, COLUMNS>(a + r * a_row, a_row, a_depth, b, depth, c + r * c_row, c_row, add);
    for (; r < rows; r++)
        product<Real, 1, COLUMNS>(a + r * a_row, a_row, a_depth, b, depth, c + r * c_row, c_row, add);
}

// Two vectors of columns at a time where the channels allow it: `panel` is their number.
template <typename Real> inline int64_t panel_of(int64_t channels) {
    return channels % (2 * Lanes<Real>::count) == 0 ? 2 : 1;
}

template <typename Real>
void panel_product(int64_t panel, int64_t rows, const Real *a, int64_t a_row, int64_t a_depth, const Real *b,
                   int64_t depth, Real *c, int64_t c_row, bool add) {
    if (panel == 2)
        product_of_rows<Real, 2>(rows, a, a_row, a_depth, b, depth, c, c_row, add);
    else
        product_of_rows<Real, 1>(rows, a, a_row, a_depth, b, depth, c, c_row, add);
}

// Where a tile lies: its image, and the corner of its results.
struct Place {
    int64_t row, top, left;

    static Place of(const Sizes &sizes, int64_t tile) {
        const int64_t each = sizes.high() * sizes.wide(), within = tile % each;
        return {tile / each, within / sizes.wide() * RESULT, within % sizes.wide() * RESULT};
    }
};

// Pixels of one tile, from the corner (top, left), SIDE x SIDE; zeros where the image ends.
template <typename Real, int SIDE>
inline void read_tile(const Real *image, int64_t height, int64_t width, int64_t pixel, int64_t top, int64_t left,
                      Vector<Real> (&to)[SIDE][SIDE]) {
    UNROLL for (int i = 0; i < SIDE; i++)
        UNROLL for (int j = 0; j < SIDE; j++) {
            const int64_t y = top + i, x = left + j;
            const bool exists = y >= 0 && y < height && x >= 0 && x < width;
            to[i][j] = exists ? load(image + (y * width + x) * pixel) : Vector<Real>{};
        }
}

// Tiles `first` to `last` of channels `begin` to `end`: [36, tiles, channels].
template <typename Real>
void transform_tiles(const Sizes &sizes, int64_t first, int64_t last, int64_t begin,
                     int64_t end, const Real *x, int64_t pixel, Real *to) {
    constexpr int lanes = Lanes<Real>::count;
    const int64_t channels = end - begin, point = pitch<Real>((last - first) * channels);
    for (int64_t tile = first; tile < last; tile++) {
        const Place place = Place::of(sizes, tile);
        const Real *image = x + place.row * sizes.height * sizes.width * pixel;
        for (int64_t channel = begin; channel < end; channel += lanes) {
            Vector<Real> own[TILE][TILE], transformed[TILE][TILE];
            read_tile<Real, TILE>(image + channel, sizes.height, sizes.width, pixel, place.top - sizes.padding,
                                  place.left - sizes.padding, own);
            from_both_sides<Real, OfTiles>(own, transformed);
            Real *at = to + (tile - first) * channels + channel - begin;
            UNROLL for (int64_t p = 0; p < POINTS; p++) store(at + p * point, transformed[p / TILE][p % TILE]);
        }
    }
}

// Kernels as panels [36, out / panel, in, panel], from one vector of output channels at a time. `tap(k, in, out)`
// points to a vector over output channels.
template <typename Real, typename Tap>
void transform_kernels(int64_t in, int64_t out, Tap tap, Real *to) {
    constexpr int lanes = Lanes<Real>::count;
    const int64_t width = panel_of<Real>(out) * lanes, point = pitch<Real>(in * out);
    for (int64_t first = 0; first < out; first += width)
        for (int64_t channel = 0; channel < in; channel++)
            for (int64_t o = first; o < first + width; o += lanes) {
                Vector<Real> own[3][3], transformed[TILE][TILE];
                UNROLL for (int k = 0; k < 9; k++) own[k / 3][k % 3] = load(tap(k, channel, o));
                from_both_sides<Real, OfKernels>(own, transformed);
                Real *at = to + first * in + channel * width + o - first;
                UNROLL for (int64_t p = 0; p < POINTS; p++) store(at + p * point, transformed[p / TILE][p % TILE]);
            }
}

// [out, 9, in] -> [9, in, out], a block at a time.
template <typename Real> void turn(int64_t in, int64_t out, const Real *from, Real *to) {
    constexpr int64_t block = 16;
    for (int64_t o = 0; o < out; o += block)
        for (int64_t k = 0; k < 9; k++)
            for (int64_t channel = 0; channel < in; channel++)
                for (int64_t b = o; b < std::min(o + block, out); b++)
                    to[(k * in + channel) * out + b] = from[(b * 9 + k) * in + channel];
}

// Tiles `first` to `last` of one site: y = conv(x, kernels), with kernels already transformed.
template <typename Real>
void convolve_tiles(const Sizes &sizes, int64_t first, int64_t last, const Real *x,
                    int64_t x_pixel, const Real *kernels, Real *y, int64_t y_pixel) {
    constexpr int lanes = Lanes<Real>::count;
    const int64_t in = sizes.in, out = sizes.out, panel = panel_of<Real>(out), width = panel * lanes;
    const int64_t chunk = tiles_at_once<Real>(in + out);
    Real *tiles = table<Real>(TILES, POINTS * pitch<Real>(chunk * in));
    Real *products = table<Real>(PRODUCTS, POINTS * pitch<Real>(chunk * out));
    for (int64_t start = first; start < last; start += chunk) {
        const int64_t stop = std::min(start + chunk, last), count = stop - start;
        const int64_t tile_point = pitch<Real>(count * in), point = pitch<Real>(count * out);
        transform_tiles(sizes, start, stop, 0, in, x, x_pixel, tiles);
        for (int64_t p = 0; p < POINTS; p++)
            for (int64_t o = 0; o < out; o += width)
                panel_product<Real>(panel, count, tiles + p * tile_point, in, 1,
                                    kernels + p * pitch<Real>(in * out) + o * in, in, products + p * point + o,
                                    out, false);
        for (int64_t tile = start; tile < stop; tile++) {
            const Place place = Place::of(sizes, tile);
            const int64_t high = std::min(RESULT, sizes.result_height() - place.top);
            const int64_t wide = std::min(RESULT, sizes.result_width() - place.left);
            Real *corner = y + ((place.row * sizes.result_height() + place.top) * sizes.result_width() + place.left) *
                                   y_pixel;
            for (int64_t o = 0; o < out; o += lanes) {
                Vector<Real> own[TILE][TILE], results[RESULT][RESULT];
                const Real *at = products + (tile - start) * out + o;
                UNROLL for (int64_t p = 0; p < POINTS; p++) own[p / TILE][p % TILE] = load(at + p * point);
                from_both_sides<Real, ToResults>(own, results);
                for (int64_t i = 0; i < high; i++)
                    for (int64_t j = 0; j < wide; j++)
                        store(corner + (i * sizes.result_width() + j) * y_pixel + o, results[i][j]);
            }
        }
    }
}

// `part` of `parts` of the tiles of every site; `prepare(site, table)` fills the table with a site's transformed kernels.
template <typename Real, typename Prepare>
void convolve_sites(const Sizes &sizes, int64_t part, int64_t parts, const Real *x, Prepare prepare, Real *y) {
    Real *kernels = table<Real>(KERNELS, POINTS * pitch<Real>(sizes.in * sizes.out));
    const int64_t tiles = sizes.tiles();
    for (int64_t site = 0; site < sizes.sites; site++) {
        prepare(site, kernels);
        convolve_tiles(sizes, tiles * part / parts, tiles * (part + 1) / parts, x + site * sizes.in,
                       sizes.sites * sizes.in, kernels, y + site * sizes.out, sizes.sites * sizes.out);
    }
}

template <typename Real>
void tiles_forward(const Sizes &sizes, int64_t part, int64_t parts, const Real *x, const Real *weight, Real *y) {
    const int64_t in = sizes.in, out = sizes.out;
    Real *turned = table<Real>(TURNED, 9 * in * out);
    convolve_sites<Real>(sizes, part, parts, x, [&](int64_t site, Real *kernels) {
        turn(in, out, weight + site * 9 * in * out, turned);
        const auto tap = [&](int64_t k, int64_t from, int64_t to) { return turned + (k * in + from) * out + to; };
        transform_kernels<Real>(in, out, tap, kernels);
    }, y);
}

// The gradient by the images is a convolution too: of the gradient, with kernels turned round.
template <typename Real>
void tiles_backward(const Sizes &sizes, int64_t part, int64_t parts, const Real *gradient, const Real *weight,
                    Real *by_x) {
    const Sizes back = {sizes.rows, sizes.result_height(), sizes.result_width(), sizes.out,
                        sizes.in,   2 - sizes.padding,     sizes.sites};
    convolve_sites<Real>(back, part, parts, gradient, [&](int64_t site, Real *kernels) {
        const Real *own = weight + site * 9 * sizes.in * sizes.out;
        const auto tap = [&](int64_t k, int64_t from, int64_t to) { return own + (from * 9 + 8 - k) * sizes.in + to; };
        transform_kernels<Real>(back.in, back.out, tap, kernels);
    }, by_x);
}

// The gradient by the kernels, for `part` of `parts` of the input channels.
template <typename Real>
void tiles_kernels(const Sizes &sizes, int64_t part, int64_t parts, const Real *x,
                   const Real *gradient, Real *by_weight) {
    constexpr int lanes = Lanes<Real>::count;
    const int64_t vectors = sizes.in / lanes, begin = vectors * part / parts * lanes;
    const int64_t end = vectors * (part + 1) / parts * lanes, in = end - begin, out = sizes.out;
    if (in == 0) return;
    const int64_t panel = panel_of<Real>(out), width = panel * lanes, pixel = sizes.sites * out;
    const int64_t chunk = tiles_at_once<Real>(in + out);
    const int64_t sum_point = pitch<Real>(in * out);
    Real *tiles = table<Real>(TILES, POINTS * pitch<Real>(chunk * in));
    Real *slopes = table<Real>(PRODUCTS, POINTS * pitch<Real>(chunk * out));
    Real *sums = table<Real>(KERNELS, POINTS * sum_point);
    for (int64_t site = 0; site < sizes.sites; site++) {
        for (int64_t start = 0; start < sizes.tiles(); start += chunk) {
            const int64_t stop = std::min(start + chunk, sizes.tiles()), count = stop - start;
            const int64_t tile_point = pitch<Real>(count * in), point = pitch<Real>(count * out);
            transform_tiles(sizes, start, stop, begin, end, x + site * sizes.in, sizes.sites * sizes.in,
                            tiles);
            for (int64_t tile = start; tile < stop; tile++) {
                const Place place = Place::of(sizes, tile);
                const Real *image = gradient + site * out +
                                    place.row * sizes.result_height() * sizes.result_width() * pixel;
                for (int64_t o = 0; o < out; o += lanes) {
                    Vector<Real> own[RESULT][RESULT], transformed[TILE][TILE];
                    read_tile<Real, RESULT>(image + o, sizes.result_height(), sizes.result_width(), pixel, place.top,
                                            place.left, own);
                    from_both_sides<Real, Transposed<ToResults>>(own, transformed);
                    Real *at = slopes + (o / width * count + tile - start) * width + o % width;
                    UNROLL for (int64_t p = 0; p < POINTS; p++)
                        store(at + p * point, transformed[p / TILE][p % TILE]);
                }
            }
            for (int64_t p = 0; p < POINTS; p++)
                for (int64_t o = 0; o < out; o += width)
                    panel_product<Real>(panel, in, tiles + p * tile_point, 1, in,
                                        slopes + p * point + o * count, count,
                                        sums + p * sum_point + o * in, width, start > 0);
        }
        Real *to = by_weight + site * 9 * sizes.in * out;
        for (int64_t o = 0; o < out; o += lanes)
            for (int64_t channel = 0; channel < in; channel++) {
                Vector<Real> own[TILE][TILE], kernel[3][3];
                const Real *at = sums + (o / width * in + channel) * width + o % width;
                UNROLL for (int64_t p = 0; p < POINTS; p++) own[p / TILE][p % TILE] = load(at + p * sum_point);
                from_both_sides<Real, Transposed<OfKernels>>(own, kernel);
                for (int64_t k = 0; k < 9; k++)
                    for (int lane = 0; lane < lanes; lane++)
                        to[((o + lane) * 9 + k) * sizes.in + begin + channel] = kernel[k / 3][k % 3][lane];
            }
    }
}

}  // namespace

#define EXPORT(Real)                                                                                                   \
    extern "C" void tiles_forward_##Real(const Sizes *sizes, int64_t part, int64_t parts,  \
                                         const Real *x, const Real *weight, Real *y) {                                 \
        tiles_forward<Real>(*sizes, part, parts, x, weight, y);                                                   \
    }                                                                                                                  \
    extern "C" void tiles_backward_##Real(const Sizes *sizes, int64_t part, int64_t parts, \
                                          const Real *gradient, const Real *weight, Real *by_x) {                      \
        tiles_backward<Real>(*sizes, part, parts, gradient, weight, by_x);                                        \
    }                                                                                                                  \
    extern "C" void tiles_kernels_##Real(const Sizes *sizes, int64_t part, int64_t parts,  \
                                         const Real *x, const Real *gradient, Real *by_weight) {                       \
        tiles_kernels<Real>(*sizes, part, parts, x, gradient, by_weight);                                         \
    }

EXPORT(float)
EXPORT(double)
