// Vectors as wide as the processor's registers: wider ones would be taken apart through memory, four times as slow.

#pragma once

#include <cstdint>
#include <type_traits>

#define UNROLL _Pragma("GCC unroll 36")

#ifdef __AVX512F__
constexpr int WIDTH = 64;
#else
constexpr int WIDTH = 32;
#endif

template <typename Real> struct Lanes {
    static constexpr int count = WIDTH / sizeof(Real);
    typedef Real vector __attribute__((vector_size(WIDTH)));
    typedef std::conditional_t<sizeof(Real) == 4, int32_t, int64_t> whole __attribute__((vector_size(WIDTH)));
    typedef Real unaligned __attribute__((vector_size(WIDTH), aligned(sizeof(Real)), may_alias));
};

template <typename Real> using Vector = typename Lanes<Real>::vector;

template <typename Real> inline Vector<Real> load(const Real *from) {
    return *reinterpret_cast<const typename Lanes<Real>::unaligned *>(from);
}

template <typename Real> inline void store(Real *to, Vector<Real> value) {
    *reinterpret_cast<typename Lanes<Real>::unaligned *>(to) = value;
}
