// The inner loops of small convolutional networks, for float and double.
//
// A block is relu(max_pool(convolution(x) + bias)) with windows of 2 x 2, stride 1 and square kernels. Most of its
// gradient is zero: only the largest of every four results has one, and of those only the positive. Going backward from
// the pooled result touches an eighth of what a convolution's own backward pass computes, which is why the block is one
// operation. Sites lie one after the other, [sites, rows, channels, height, width]; kernels have their input channels
// last, [sites, out, k, k, in]. Vectors are GCC's: the compiler makes of them what the processor has.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "vectors.h"

namespace {

// Sizes of one block, the same for every image.
struct Shape {
    int64_t in, height, width, out, side, padding;

    int64_t full_height() const { return height + 2 * padding; }
    int64_t full_width() const { return width + 2 * padding; }
    int64_t pooled_height() const { return (full_height() - side + 1) / 2; }
    int64_t pooled_width() const { return (full_width() - side + 1) / 2; }
    int64_t image() const { return in * height * width; }
    int64_t pooled_image() const { return out * pooled_height() * pooled_width(); }
    int64_t kernel() const { return in * side * side; }
};

// Forward ---------------------------------------------------------------------------------------------------

// Two rows of results for OUT channels and COLUMNS vectors of columns. Each input row serves both.
template <typename Real, int OUT, int COLUMNS>
void two_rows(const Real *image, const Real *taps, const Shape &shape, int64_t line, Real *results, int64_t stride) {
    constexpr int lanes = Lanes<Real>::count;
    Vector<Real> upper[OUT][COLUMNS] = {}, lower[OUT][COLUMNS] = {};
    const int64_t side = shape.side, plane = line * shape.full_height();
    for (int64_t channel = 0; channel < shape.in; channel++)
        for (int64_t column = 0; column < side; column++) {
            const Real *input = image + channel * plane + column;
            const Real *tap = taps + (channel * side + column) * side * shape.out;
            Vector<Real> x[COLUMNS];
            UNROLL for (int v = 0; v < COLUMNS; v++) x[v] = load(input + v * lanes);
            for (int64_t row = 0; row < side; row++) {
                input += line;
                UNROLL for (int o = 0; o < OUT; o++)
                    UNROLL for (int v = 0; v < COLUMNS; v++) upper[o][v] += x[v] * tap[o];
                UNROLL for (int v = 0; v < COLUMNS; v++) x[v] = load(input + v * lanes);
                UNROLL for (int o = 0; o < OUT; o++)
                    UNROLL for (int v = 0; v < COLUMNS; v++) lower[o][v] += x[v] * tap[o];
                tap += shape.out;
            }
        }
    UNROLL for (int o = 0; o < OUT; o++)
        UNROLL for (int v = 0; v < COLUMNS; v++) {
            store(results + 2 * o * stride + v * lanes, upper[o][v]);
            store(results + (2 * o + 1) * stride + v * lanes, lower[o][v]);
        }
}

template <typename Real> inline Vector<Real> every_other(Vector<Real> left, Vector<Real> right, int from) {
    typename Lanes<Real>::whole places;
    for (int lane = 0; lane < Lanes<Real>::count; lane++) places[lane] = 2 * lane + from;
    return __builtin_shuffle(left, right, places);
}

// `count` values, of which there is room to read a whole vector.
template <typename Value, int LANES> inline void copy_some(Value *to, const Value *from, int64_t count) {
    if (count >= LANES) {
        std::memcpy(to, from, LANES * sizeof(Value));
    } else if (count >= LANES / 2) {
        std::memcpy(to, from, LANES / 2 * sizeof(Value));
        std::memcpy(to + count - LANES / 2, from + count - LANES / 2, LANES / 2 * sizeof(Value));
    } else {
        for (int64_t i = 0; i < count; i++) to[i] = from[i];
    }
}

// The largest of each window, the first of equals and NaN before all, as torch takes it; then bias and ReLU.
template <typename Real>
void pool_line(const Real *upper, const Real *lower, int64_t count, Real bias, Real *pooled, uint8_t *places) {
    constexpr int lanes = Lanes<Real>::count;
    typedef uint8_t Bytes __attribute__((vector_size(lanes)));
    for (int64_t j = 0; j < count; j += lanes, upper += 2 * lanes, lower += 2 * lanes) {
        Vector<Real> best = every_other<Real>(load(upper), load(upper + lanes), 0);
        typename Lanes<Real>::whole place = {};
        const Vector<Real> others[3] = {every_other<Real>(load(upper), load(upper + lanes), 1),
                                        every_other<Real>(load(lower), load(lower + lanes), 0),
                                        every_other<Real>(load(lower), load(lower + lanes), 1)};
        UNROLL for (int other = 0; other < 3; other++) {
            const auto next = (others[other] > best) | (others[other] != others[other]);
            best = next ? others[other] : best;
            place = next ? (typename Lanes<Real>::whole){} + other + 1 : place;
        }
        best += bias;
        best = best < 0 ? Vector<Real>{} : best;
        const Bytes small = __builtin_convertvector(place, Bytes);
        copy_some<Real, lanes>(pooled + j, reinterpret_cast<const Real *>(&best), count - j);
        copy_some<uint8_t, lanes>(places + j, reinterpret_cast<const uint8_t *>(&small), count - j);
    }
}

template <typename Real>
void pad_image(const Real *from, const Shape &shape, int64_t line, Real *to) {
    for (int64_t channel = 0; channel < shape.in; channel++)
        for (int64_t row = 0; row < shape.height; row++)
            std::memcpy(to + (channel * shape.full_height() + row + shape.padding) * line + shape.padding,
                        from + (channel * shape.height + row) * shape.width, shape.width * sizeof(Real));
}

template <typename Real, int COLUMNS>
void channels_from(int64_t first, const Real *image, const Real *taps, const Shape &shape, int64_t line, Real *results,
                   int64_t stride) {
    constexpr int most = COLUMNS == 2 ? 6 : 8;
    int64_t o = first;
    for (; o + most <= shape.out; o += most)
        two_rows<Real, most, COLUMNS>(image, taps + o, shape, line, results + 2 * o * stride, stride);
    for (; o + 4 <= shape.out; o += 4)
        two_rows<Real, 4, COLUMNS>(image, taps + o, shape, line, results + 2 * o * stride, stride);
    for (; o + 2 <= shape.out; o += 2)
        two_rows<Real, 2, COLUMNS>(image, taps + o, shape, line, results + 2 * o * stride, stride);
    for (; o < shape.out; o++)
        two_rows<Real, 1, COLUMNS>(image, taps + o, shape, line, results + 2 * o * stride, stride);
}

template <typename Real>
void block_forward(const Shape &shape, int64_t rows, int64_t first, int64_t last, const Real *x, const Real *weight,
                   const Real *bias, Real *pooled, uint8_t *places) {
    constexpr int lanes = Lanes<Real>::count;
    const int64_t high = shape.pooled_height(), wide = shape.pooled_width();
    const int64_t stride = (2 * wide + 2 * lanes - 1) / (2 * lanes) * (2 * lanes);
    const int64_t line = shape.full_width();
    std::vector<Real> image(shape.in * shape.full_height() * line + stride + shape.side, 0);
    std::vector<Real> taps(shape.out * shape.kernel()), results(2 * shape.out * stride);
    for (int64_t number = first; number < last; number++) {
        const int64_t site = number / rows;
        if (number == first || number % rows == 0)
            for (int64_t o = 0; o < shape.out; o++)
                for (int64_t row = 0; row < shape.side; row++)
                    for (int64_t column = 0; column < shape.side; column++)
                        for (int64_t channel = 0; channel < shape.in; channel++)
                            taps[((channel * shape.side + column) * shape.side + row) * shape.out + o] =
                                weight[site * shape.out * shape.kernel() +
                                       ((o * shape.side + row) * shape.side + column) * shape.in + channel];
        pad_image(x + number * shape.image(), shape, line, image.data());
        for (int64_t i = 0; i < high; i++) {
            const Real *from = image.data() + 2 * i * line;
            for (int64_t column = 0; column < 2 * wide; column += 2 * lanes)
                if (2 * wide - column > lanes)
                    channels_from<Real, 2>(0, from + column, taps.data(), shape, line, results.data() + column, stride);
                else
                    channels_from<Real, 1>(0, from + column, taps.data(), shape, line, results.data() + column, stride);
            for (int64_t o = 0; o < shape.out; o++) {
                const int64_t at = number * shape.pooled_image() + (o * high + i) * wide;
                const Real *upper = results.data() + 2 * o * stride;
                pool_line(upper, upper + stride, wide, bias ? bias[site * shape.out + o] : Real(0), pooled + at,
                          places + at);
            }
        }
    }
}

// Backward --------------------------------------------------------------------------------------------------

// Where the gradient of one output channel enters an image: an entry for each pooled result that is positive, with
// the place of its window. The lines of a window are `line` apart in the image and `stride` in the kernel.
template <typename Real> struct Entries {
    const int32_t *places;
    const Real *gradients;
    int64_t count, line, stride;
};

template <typename Real, int LINES, int WIDTH>
void add_to_kernel(const Entries<Real> &entries, const Real *image, Real *gradient) {
    constexpr int lanes = Lanes<Real>::count;
    Vector<Real> sum[LINES][WIDTH] = {};
    for (int64_t e = 0; e < entries.count; e++) {
        const Real *from = image + entries.places[e];
        UNROLL for (int l = 0; l < LINES; l++)
            UNROLL for (int v = 0; v < WIDTH; v++)
                sum[l][v] += load(from + l * entries.line + v * lanes) * entries.gradients[e];
    }
    UNROLL for (int l = 0; l < LINES; l++)
        UNROLL for (int v = 0; v < WIDTH; v++) {
            Real *to = gradient + l * entries.stride + v * lanes;
            store(to, load(to) + sum[l][v]);
        }
}

template <typename Real, int LINES, int WIDTH>
void add_to_image(const Entries<Real> &entries, const Real *kernel, Real *gradient) {
    constexpr int lanes = Lanes<Real>::count;
    Vector<Real> own[LINES][WIDTH];
    UNROLL for (int l = 0; l < LINES; l++)
        UNROLL for (int v = 0; v < WIDTH; v++) own[l][v] = load(kernel + l * entries.stride + v * lanes);
    for (int64_t e = 0; e < entries.count; e++) {
        Real *to = gradient + entries.places[e];
        UNROLL for (int l = 0; l < LINES; l++)
            UNROLL for (int v = 0; v < WIDTH; v++) {
                Real *at = to + l * entries.line + v * lanes;
                store(at, load(at) + own[l][v] * entries.gradients[e]);
            }
    }
}

// All lines and vectors of the windows, in pieces that fit the registers.
template <typename Real, int LINES>
void add_lines(const Entries<Real> &entries, int64_t vectors, const Real *image, Real *kernel_gradient,
               const Real *kernel, Real *image_gradient) {
    constexpr int lanes = Lanes<Real>::count;
    int64_t done = 0;
    while (done < vectors) {
        const int64_t at = done * lanes;
        if (vectors - done >= 2) {
            add_to_kernel<Real, LINES, 2>(entries, image + at, kernel_gradient + at);
            if (image_gradient) add_to_image<Real, LINES, 2>(entries, kernel + at, image_gradient + at);
            done += 2;
        } else {
            add_to_kernel<Real, LINES, 1>(entries, image + at, kernel_gradient + at);
            if (image_gradient) add_to_image<Real, LINES, 1>(entries, kernel + at, image_gradient + at);
            done += 1;
        }
    }
}

// The windows of a plane in an order in which neighbours in time do not overlap: a window that adds to numbers which
// another is still writing has to wait for it.
std::vector<int32_t> scattered(int64_t high, int64_t wide, int64_t side) {
    const int64_t apart = side / 2 + 1;
    std::vector<int32_t> order;
    for (int64_t top = 0; top < apart; top++)
        for (int64_t left = 0; left < apart; left++)
            for (int64_t i = top; i < high; i += apart)
                for (int64_t j = left; j < wide; j += apart) order.push_back(int32_t(i * wide + j));
    return order;
}

// `count` is a whole number of vectors.
template <typename Real> Real sum(const Real *values, int64_t count) {
    Vector<Real> sums = {};
    for (int64_t i = 0; i < count; i += Lanes<Real>::count) sums += load(values + i);
    Real total = 0;
    for (int lane = 0; lane < Lanes<Real>::count; lane++) total += sums[lane];
    return total;
}

template <typename Real>
void block_backward(const Shape &shape, int64_t rows, int64_t first, int64_t last, const Real *x, const Real *weight,
                    const Real *pooled, const uint8_t *taken, const Real *gradient, Real *by_x, Real *by_weight,
                    Real *by_bias) {
    constexpr int lanes = Lanes<Real>::count;
    const int64_t high = shape.pooled_height(), wide = shape.pooled_width(), line = shape.full_width() * shape.in;
    const int64_t length = shape.side * shape.in, vectors = (length + lanes - 1) / lanes, stride = vectors * lanes;
    std::vector<Real> image(shape.full_height() * line + stride, 0);  // pixels, channels last
    std::vector<Real> image_gradient(by_x ? image.size() : 0);
    std::vector<Real> kernels(shape.out * shape.side * stride, 0), sums(shape.out * shape.side * stride);
    const int64_t pooled_plane = high * wide, padded_plane = (pooled_plane + lanes - 1) / lanes * lanes;
    std::vector<Real> gradients(padded_plane, 0), open_gradients(pooled_plane);
    std::vector<int32_t> places(pooled_plane), open_places(pooled_plane), corners(pooled_plane);
    for (int64_t j = 0; j < pooled_plane; j++)
        corners[j] = int32_t(j / wide * 2 * line + j % wide * 2 * shape.in);
    const std::vector<int32_t> order = scattered(high, wide, by_x ? shape.side : 1);
    for (int64_t site = first; site < last; site++) {
        const Real *own = weight + site * shape.out * shape.kernel();
        for (int64_t k = 0; k < (by_x ? shape.out * shape.side : 0); k++)
            std::memcpy(kernels.data() + k * stride, own + k * length, length * sizeof(Real));
        std::memset(sums.data(), 0, sums.size() * sizeof(Real));
        if (by_bias) std::memset(by_bias + site * shape.out, 0, shape.out * sizeof(Real));
        for (int64_t number = site * rows; number < (site + 1) * rows; number++) {
            const Real *plain = x + number * shape.image();
            for (int64_t row = 0; row < shape.height; row++) {
                Real *to = image.data() + (row + shape.padding) * line + shape.padding * shape.in;
                for (int64_t channel = 0; channel < shape.in; channel++)
                    for (int64_t column = 0; column < shape.width; column++)
                        to[column * shape.in + channel] =
                            plain[(channel * shape.height + row) * shape.width + column];
            }
            if (by_x) std::memset(image_gradient.data(), 0, image_gradient.size() * sizeof(Real));
            for (int64_t o = 0; o < shape.out; o++) {
                int64_t count = 0;
                const int64_t at = number * shape.pooled_image() + o * pooled_plane;
                for (int64_t j = 0; j < pooled_plane; j++) {
                    const int32_t place = taken[at + j];
                    gradients[j] = pooled[at + j] <= 0 ? 0 : gradient[at + j];
                    places[j] = corners[j] + (place >> 1) * int32_t(line) + (place & 1) * int32_t(shape.in);
                }
                if (by_bias) by_bias[site * shape.out + o] += sum(gradients.data(), padded_plane);
                for (int64_t j = 0; j < pooled_plane; j++) {
                    const Real own = gradients[order[j]];
                    open_places[count] = places[order[j]];
                    open_gradients[count] = own;
                    count += own != 0;
                }
                const Entries<Real> entries = {open_places.data(), open_gradients.data(), count, line, stride};
                int64_t row = 0;
                while (row < shape.side) {
                    const int64_t k = (o * shape.side + row) * stride, left = shape.side - row;
                    const auto add = left >= 5 ? add_lines<Real, 5> : left >= 3 ? add_lines<Real, 3> : add_lines<Real, 1>;
                    add(entries, vectors, image.data() + row * line, sums.data() + k, kernels.data() + k,
                        by_x ? image_gradient.data() + row * line : nullptr);
                    row += left >= 5 ? 5 : left >= 3 ? 3 : 1;
                }
            }
            if (by_x)
                for (int64_t channel = 0; channel < shape.in; channel++)
                    for (int64_t row = 0; row < shape.height; row++) {
                        const Real *from =
                            image_gradient.data() + (row + shape.padding) * line + shape.padding * shape.in + channel;
                        Real *to = by_x + number * shape.image() + (channel * shape.height + row) * shape.width;
                        for (int64_t column = 0; column < shape.width; column++) to[column] = from[column * shape.in];
                    }
        }
        for (int64_t k = 0; k < shape.out * shape.side; k++)
            std::memcpy(by_weight + site * shape.out * shape.kernel() + k * length, sums.data() + k * stride,
                        length * sizeof(Real));
    }
}

// Images ----------------------------------------------------------------------------------------------------

// Sizes of a step's images; the strides are those of [sites, rows, channels, height, width] in the result.
struct Frame {
    int64_t channels, height, width, rows, padding;
    int64_t by_site, by_row, by_channel, by_line, by_column;
};

// Row by row: zeros where the window leaves the image, and in between bytes, turned to numbers, perhaps from the right.
template <typename Real>
void take_line(const uint8_t *from, int64_t width, int64_t left, bool flipped, Real scale, Real offset, Real *to,
               int64_t stride) {
    const int64_t begin = std::min(std::max<int64_t>(-left, 0), width);  // columns that exist
    const int64_t end = std::max(std::min(width - left, width), begin);
    if (stride == 1 && !flipped) {
        for (int64_t column = 0; column < begin; column++) to[column] = 0;
        for (int64_t column = begin; column < end; column++) to[column] = from[column + left] * scale - offset;
        for (int64_t column = end; column < width; column++) to[column] = 0;
    } else if (stride == 1) {
        Real *last = to + width - 1;
        for (int64_t column = 0; column < begin; column++) last[-column] = 0;
        for (int64_t column = begin; column < end; column++) last[-column] = from[column + left] * scale - offset;
        for (int64_t column = end; column < width; column++) last[-column] = 0;
    } else {
        for (int64_t column = 0; column < width; column++) {
            const bool exists = column >= begin && column < end;
            to[(flipped ? width - 1 - column : column) * stride] = exists ? from[column + left] * scale - offset : 0;
        }
    }
}

template <typename Real>
void take_images(const Frame &frame, int64_t first, int64_t last, const uint8_t *pool, const int64_t *rows,
                 const int64_t *shifts, const uint8_t *flips, const float *scale, const float *offset, Real *images) {
    const int64_t plane = frame.height * frame.width;
    for (int64_t number = first; number < last; number++) {
        const int64_t site = number / frame.rows, row = number % frame.rows;
        const int64_t down = shifts ? shifts[2 * number] - frame.padding : 0;
        const int64_t left = shifts ? shifts[2 * number + 1] - frame.padding : 0;
        for (int64_t channel = 0; channel < frame.channels; channel++) {
            const uint8_t *image = pool + (rows[number] * frame.channels + channel) * plane;
            Real *to = images + site * frame.by_site + row * frame.by_row + channel * frame.by_channel;
            const Real own_scale = scale[site * frame.channels + channel];
            const Real own_offset = offset[site * frame.channels + channel];
            for (int64_t line = 0; line < frame.height; line++, to += frame.by_line) {
                const int64_t source = line + down;
                if (source < 0 || source >= frame.height)
                    for (int64_t column = 0; column < frame.width; column++) to[column * frame.by_column] = 0;
                else
                    take_line(image + source * frame.width, frame.width, left, flips && flips[number], own_scale,
                              own_offset, to, frame.by_column);
            }
        }
    }
}

}  // namespace

#define EXPORT(Real)                                                                                                   \
    extern "C" void block_forward_##Real(const Shape *shape, int64_t rows, int64_t first, int64_t last, const Real *x, \
                                         const Real *weight, const Real *bias, Real *pooled, uint8_t *places) {        \
        block_forward<Real>(*shape, rows, first, last, x, weight, bias, pooled, places);                               \
    }                                                                                                                  \
    extern "C" void block_backward_##Real(const Shape *shape, int64_t rows, int64_t first, int64_t last,               \
                                          const Real *x, const Real *weight, const Real *pooled,                       \
                                          const uint8_t *places, const Real *gradient, Real *by_x, Real *by_weight,    \
                                          Real *by_bias) {                                                             \
        block_backward<Real>(*shape, rows, first, last, x, weight, pooled, places, gradient, by_x, by_weight,          \
                             by_bias);                                                                                 \
    }                                                                                                                  \
    extern "C" void take_images_##Real(const Frame *frame, int64_t first, int64_t last, const uint8_t *pool,           \
                                       const int64_t *rows, const int64_t *shifts, const uint8_t *flips,               \
                                       const float *scale, const float *offset, Real *images) {                        \
        take_images<Real>(*frame, first, last, pool, rows, shifts, flips, scale, offset, images);                      \
    }

EXPORT(float)
EXPORT(double)
