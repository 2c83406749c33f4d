// Batch norm in training, with what often follows it in the same pass: the sum with another image, and ReLU.
//
// Values are rows of channels, [rows, channels] with channels in whole vectors; a channel of a site is a channel of its
// own. Memory is the cost of these loops, not arithmetic: values are read once for the statistics and once for the
// results, and backward needs a byte for each value to know where ReLU was open.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "vectors.h"

namespace {

constexpr int64_t BLOCK = 32;  // rows that stay in the nearest cache between two looks at them

template <typename Real> struct Bytes {
    typedef uint8_t vector __attribute__((vector_size(Lanes<Real>::count)));
    typedef uint8_t unaligned __attribute__((vector_size(Lanes<Real>::count), aligned(1), may_alias));
};

struct Settings {
    int64_t rows, channels, relu;
    double momentum, eps;
};

// Mean and sum of squared distances from it, block by block (Chan, Golub and LeVeque's update).
template <typename Real> void statistics(const Settings &set, const Real *x, Real *mean, Real *squares) {
    constexpr int lanes = Lanes<Real>::count;
    for (int64_t start = 0; start < set.rows; start += BLOCK) {
        const int64_t count = std::min(BLOCK, set.rows - start);
        const Real share = Real(count) / Real(start + count), cross = share * Real(start);
        for (int64_t channel = 0; channel < set.channels; channel += lanes) {
            const Real *from = x + start * set.channels + channel;
            Vector<Real> sum = {}, spread = {};
            for (int64_t row = 0; row < count; row++) sum += load(from + row * set.channels);
            const Vector<Real> own = sum / Real(count);
            for (int64_t row = 0; row < count; row++) {
                const Vector<Real> distance = load(from + row * set.channels) - own;
                spread += distance * distance;
            }
            const Vector<Real> before = start ? load(mean + channel) : Vector<Real>{}, apart = own - before;
            store(mean + channel, before + apart * share);
            store(squares + channel, (start ? load(squares + channel) : Vector<Real>{}) + spread + apart * apart * cross);
        }
    }
}

template <typename Real>
void norm_forward(const Settings &set, const Real *x, const Real *residual, const Real *weight, const Real *bias,
                  Real *running_mean, Real *running_variance, Real *y, Real *mean, Real *scale, uint8_t *open) {
    constexpr int lanes = Lanes<Real>::count;
    std::vector<Real> slope(set.channels), offset(set.channels);
    statistics(set, x, mean, scale);
    for (int64_t channel = 0; channel < set.channels; channel++) {
        const Real variance = scale[channel] / Real(set.rows);
        if (running_mean) {
            const Real momentum = Real(set.momentum), unbiased = scale[channel] / Real(std::max<int64_t>(set.rows - 1, 1));
            running_mean[channel] += momentum * (mean[channel] - running_mean[channel]);
            running_variance[channel] += momentum * (unbiased - running_variance[channel]);
        }
        scale[channel] = 1 / std::sqrt(variance + Real(set.eps));
        slope[channel] = scale[channel] * (weight ? weight[channel] : 1);
        offset[channel] = (bias ? bias[channel] : 0) - mean[channel] * slope[channel];
    }
    for (int64_t row = 0; row < set.rows; row++)
        for (int64_t channel = 0; channel < set.channels; channel += lanes) {
            const int64_t at = row * set.channels + channel;
            Vector<Real> value = load(x + at) * load(slope.data() + channel) + load(offset.data() + channel);
            if (residual) value += load(residual + at);
            if (set.relu) {
                const auto shut = value <= 0;  // what is no number stays visible
                value = shut ? Vector<Real>{} : value;
                *reinterpret_cast<typename Bytes<Real>::unaligned *>(open + at) =
                    __builtin_convertvector(shut + 1, typename Bytes<Real>::vector);
            }
            store(y + at, value);
        }
}

// The gradient where ReLU was open.
template <typename Real> inline Vector<Real> let_through(const Real *gradient, const uint8_t *open, int64_t at) {
    const Vector<Real> own = load(gradient + at);
    if (!open) return own;
    const typename Bytes<Real>::vector bytes = *reinterpret_cast<const typename Bytes<Real>::unaligned *>(open + at);
    return __builtin_convertvector(bytes, typename Lanes<Real>::whole) != 0 ? own : Vector<Real>{};
}

// dx = w s (g - sum g / n - (x - mean) s^2 sum(g (x - mean)) / n), where s = 1 / sqrt(variance + eps).
template <typename Real>
void norm_backward(const Settings &set, const Real *x, const Real *gradient, const uint8_t *open, const Real *weight,
                   const Real *mean, const Real *scale, Real *by_x, Real *by_residual, Real *by_weight, Real *by_bias) {
    constexpr int lanes = Lanes<Real>::count;
    std::vector<Real> slope(set.channels), tilt(set.channels), offset(set.channels);
    std::fill(by_weight, by_weight + set.channels, Real(0));
    std::fill(by_bias, by_bias + set.channels, Real(0));
    for (int64_t start = 0; start < set.rows; start += BLOCK) {
        const int64_t stop = std::min(start + BLOCK, set.rows);
        for (int64_t channel = 0; channel < set.channels; channel += lanes) {
            const Vector<Real> centre = load(mean + channel);
            Vector<Real> sum = {}, moment = {};
            for (int64_t row = start; row < stop; row++) {
                const int64_t at = row * set.channels + channel;
                const Vector<Real> own = let_through(gradient, open, at);
                sum += own;
                moment += own * (load(x + at) - centre);
            }
            store(by_bias + channel, load(by_bias + channel) + sum);
            store(by_weight + channel, load(by_weight + channel) + moment);
        }
    }
    for (int64_t channel = 0; channel < set.channels; channel++) {
        const Real s = scale[channel], n = Real(set.rows);
        slope[channel] = s * (weight ? weight[channel] : 1);
        tilt[channel] = -slope[channel] * s * s * by_weight[channel] / n;
        offset[channel] = -slope[channel] * by_bias[channel] / n - tilt[channel] * mean[channel];
        by_weight[channel] *= s;
    }
    for (int64_t row = 0; row < set.rows; row++)
        for (int64_t channel = 0; channel < set.channels; channel += lanes) {
            const int64_t at = row * set.channels + channel;
            const Vector<Real> own = let_through(gradient, open, at);
            store(by_x + at, own * load(slope.data() + channel) + load(x + at) * load(tilt.data() + channel) +
                                 load(offset.data() + channel));
            if (by_residual) store(by_residual + at, own);
        }
}

}  // namespace

#define EXPORT(Real)                                                                                                   \
    extern "C" void norm_forward_##Real(const Settings *set, const Real *x, const Real *residual, const Real *weight,  \
                                        const Real *bias, Real *running_mean, Real *running_variance, Real *y,         \
                                        Real *mean, Real *scale, uint8_t *open) {                                      \
        norm_forward<Real>(*set, x, residual, weight, bias, running_mean, running_variance, y, mean, scale, open);     \
    }                                                                                                                  \
    extern "C" void norm_backward_##Real(const Settings *set, const Real *x, const Real *gradient,                     \
                                         const uint8_t *open, const Real *weight, const Real *mean, const Real *scale, \
                                         Real *by_x, Real *by_residual, Real *by_weight, Real *by_bias) {              \
        norm_backward<Real>(*set, x, gradient, open, weight, mean, scale, by_x, by_residual, by_weight, by_bias);      \
    }

EXPORT(float)
EXPORT(double)
