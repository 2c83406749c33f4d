// Vectors of 64 bytes, whatever the processor makes of them.

#pragma once

#include <cstdint>
#include <type_traits>

#define UNROLL _Pragma("GCC unroll 36")

template <typename Real> struct Lanes {
    static constexpr int count = 64 / sizeof(Real);
    typedef Real vector __attribute__((vector_size(64)));
    typedef std::conditional_t<sizeof(Real) == 4, int32_t, int64_t> whole __attribute__((vector_size(64)));
    typedef Real unaligned __attribute__((vector_size(64), aligned(sizeof(Real)), may_alias));
};

template <typename Real> using Vector = typename Lanes<Real>::vector;

template <typename Real> inline Vector<Real> load(const Real *from) {
    return *reinterpret_cast<const typename Lanes<Real>::unaligned *>(from);
}

template <typename Real> inline void store(Real *to, Vector<Real> value) {
    *reinterpret_cast<typename Lanes<Real>::unaligned *>(to) = value;
}
