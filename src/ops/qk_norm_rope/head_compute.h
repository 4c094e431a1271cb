// The head kernel, in loops that compilers vectorise. Included only by head_kernel_*.cpp, which are compiled for
// different instruction sets. Everything is in the anonymous namespace, and no inline function of other headers is
// called: functions with external linkage would be merged across those files, and the linker could keep a copy that the
// machine cannot run.
#pragma once

#include <cstdint>

#include "ops/qk_norm_rope/head_kernel.h"

namespace hone::cpu {
namespace {

float to_float(float value) { return value; }
float to_float(uint16_t bits) {
  const uint32_t word = static_cast<uint32_t>(bits) << 16;
  float value;
  __builtin_memcpy(&value, &word, sizeof(value));
  return value;
}

void assign(float& target, float value) { target = value; }
/// Rounds to nearest even; NaN stays NaN (as BFloat16).
void assign(uint16_t& target, float value) {
  uint32_t word;
  __builtin_memcpy(&word, &value, sizeof(word));
  const uint32_t rounded = (word + 0x7fffu + ((word >> 16) & 1u)) >> 16;
  target = static_cast<uint16_t>((word & 0x7fffffffu) > 0x7f800000u ? (word >> 16) | 0x40u : rounded);
}

template <class T>
float rounded(float value) {
  T bits;
  assign(bits, value);
  return to_float(bits);
}

template <class T>
void round_all(float* __restrict values, int64_t n) {
  for (int64_t i = 0; i < n; ++i) values[i] = rounded<T>(values[i]);
}

/// Σ a[i] b[i] in 16 partial sums, which stay in vector registers.
float dot(const float* a, const float* b, int64_t n) {
  constexpr int kLanes = 16;
  float sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  for (int lane = 0; i < n; ++i, ++lane) sums[lane] += a[i] * b[i];
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) sums[lane] += sums[lane + width];
  }
  return sums[0];
}

template <class T>
void load(const T* __restrict from, int64_t n, float* __restrict to) {
  for (int64_t i = 0; i < n; ++i) to[i] = to_float(from[i]);
}

float inverse_rms(const float* x, const HeadRow& row) {
  return 1.0f / __builtin_sqrtf(dot(x, x, row.head_dim) / static_cast<float>(row.head_dim) + row.eps);
}

/// Rotates the pairs of a head by the angles or, with direction −1, by their negatives: elements kStride · i of `first`
/// and of `second`.
template <int kStride>
void turn_pairs(const HeadRow& row, float direction, float* __restrict first, float* __restrict second) {
  const float* __restrict cos = row.cos;
  const float* __restrict sin = row.sin;
  for (int64_t i = 0; i < row.half; ++i) {
    const float a = first[kStride * i], b = second[kStride * i], s = direction * sin[i];
    first[kStride * i] = a * cos[i] - b * s;
    second[kStride * i] = b * cos[i] + a * s;
  }
}

void turn(const HeadRow& row, float direction, float* head) {
  float* first = head + row.offset;
  if (row.interleaved) {
    turn_pairs<2>(row, direction, first, first + 1);
  } else {
    turn_pairs<1>(row, direction, first, first + row.half);
  }
}

template <class T>
void forward(const HeadRow& row, const T* x, T* y) {
  alignas(64) float z[kMaxHeadDim];
  const float* __restrict w = row.norm;
  for (int64_t head = 0; head < row.heads; ++head, x += row.head_dim, y += row.head_dim) {
    load(x, row.head_dim, z);
    if (w) {
      const float scale = inverse_rms(z, row);
      for (int64_t i = 0; i < row.head_dim; ++i) z[i] *= scale;
      if (row.rounds_first) round_all<T>(z, row.head_dim);
      for (int64_t i = 0; i < row.head_dim; ++i) z[i] = rounded<T>(w[i] * z[i]);
    }
    turn(row, 1.0f, z);
    for (int64_t i = 0; i < row.head_dim; ++i) assign(y[i], z[i]);
  }
}

/// Converts d loss / d z in `dz` to d loss / d x in place; x becomes the normalised x.
template <class T>
void norm_backward(const HeadRow& row, float* __restrict x, float* __restrict dz, float* __restrict dnorm) {
  const float scale = inverse_rms(x, row);
  const int64_t dim = row.head_dim;
  const float* __restrict w = row.norm;
  for (int64_t i = 0; i < dim; ++i) x[i] *= scale;
  if (dnorm) {
    alignas(64) float factor[kMaxHeadDim];
    for (int64_t i = 0; i < dim; ++i) factor[i] = x[i];
    if (row.rounds_first) round_all<T>(factor, dim);
    for (int64_t i = 0; i < dim; ++i) dnorm[i] += dz[i] * factor[i];
  }
  for (int64_t i = 0; i < dim; ++i) dz[i] *= w[i];
  const float mean = dot(dz, x, dim) / static_cast<float>(dim);
  for (int64_t i = 0; i < dim; ++i) dz[i] = scale * (dz[i] - x[i] * mean);
}

template <class T>
void store(const float* __restrict gradient, int64_t n, float beta, T* __restrict dx) {
  if (beta != 0.0f) {
    for (int64_t i = 0; i < n; ++i) assign(dx[i], gradient[i] + to_float(dx[i]));
  } else {
    for (int64_t i = 0; i < n; ++i) assign(dx[i], gradient[i]);
  }
}

template <class T>
void backward(const HeadRow& row, const T* x, const T* dy, T* dx, float beta, float* dnorm) {
  alignas(64) float gradient[kMaxHeadDim];
  alignas(64) float values[kMaxHeadDim];
  const int64_t dim = row.head_dim;
  for (int64_t at = 0; at < row.heads * dim; at += dim) {
    load(dy + at, dim, gradient);
    turn(row, -1.0f, gradient);
    if (row.norm) {
      load(x + at, dim, values);
      norm_backward<T>(row, values, gradient, dnorm);
    }
    if (dx) store(gradient, dim, beta, dx + at);
  }
}

constexpr HeadKernels kKernels{{&forward<float>, &backward<float>}, {&forward<uint16_t>, &backward<uint16_t>}};

}  // namespace
}  // namespace hone::cpu
