#include <algorithm>
#include <array>

#include "core/cpu/thread_pool.h"
#include "ops/latent_heads/latent_heads.h"

namespace hone::cpu {

namespace {

constexpr int64_t kTokensPerTask = 8;
constexpr int64_t kMaxRopeDim = 1024;

/// to = from + beta · to.
template <class T>
void store(const T* from, int64_t n, bool accumulate, T* to) {
  if (!accumulate) {
    std::copy_n(from, n, to);
    return;
  }
  for (int64_t i = 0; i < n; ++i) to[i] = T(static_cast<float>(from[i]) + static_cast<float>(to[i]));
}

template <class T>
void forward_token(const LatentHeadsArgs& args, int64_t token) {
  const auto [heads, nope, rope, v_dim] = args.sizes;
  const T* kv = args.kv.as<T>() + token * args.sizes.kv_width();
  const T* shared = args.shared.as<T>() + token * rope;
  T* k = args.k.as<T>() + token * args.sizes.k_width();
  T* v = args.v.as<T>() + token * args.sizes.v_width();
  for (int64_t head = 0; head < heads; ++head, kv += nope + v_dim) {
    k = std::copy_n(shared, rope, std::copy_n(kv, nope, k));
    v = std::copy_n(kv + nope, v_dim, v);
  }
}

template <class T>
void backward_token(const LatentHeadsGradArgs& args, int64_t token) {
  const auto [heads, nope, rope, v_dim] = args.sizes;
  const T* dk = args.dk.as<T>() + token * args.sizes.k_width();
  const T* dv = args.dv.as<T>() + token * args.sizes.v_width();
  if (args.dkv.wanted()) {
    T* dkv = args.dkv.dst.as<T>() + token * args.sizes.kv_width();
    for (int64_t head = 0; head < heads; ++head, dkv += nope + v_dim) {
      store(dk + head * (nope + rope), nope, args.dkv.beta != 0.0f, dkv);
      store(dv + head * v_dim, v_dim, args.dkv.beta != 0.0f, dkv + nope);
    }
  }
  if (args.dshared.wanted()) {
    std::array<float, kMaxRopeDim> sums;
    T* dshared = args.dshared.dst.as<T>() + token * rope;
    for (int64_t i = 0; i < rope; ++i) {
      sums[static_cast<size_t>(i)] = args.dshared.beta != 0.0f ? static_cast<float>(dshared[i]) : 0.0f;
    }
    for (int64_t head = 0; head < heads; ++head) {
      const T* gradient = dk + head * (nope + rope) + nope;
      for (int64_t i = 0; i < rope; ++i) sums[static_cast<size_t>(i)] += static_cast<float>(gradient[i]);
    }
    for (int64_t i = 0; i < rope; ++i) dshared[i] = T(sums[static_cast<size_t>(i)]);
  }
}

}  // namespace

void latent_heads(const Context& context, const LatentHeadsArgs& args) {
  context.launch([args](ThreadPool& pool) {
    dispatch_float(args.kv.dtype, [&](auto element) {
      pool.parallel_ranges(args.kv.shape[0], kTokensPerTask, [&](int64_t begin, int64_t end) {
        for (int64_t token = begin; token < end; ++token) forward_token<decltype(element)>(args, token);
      });
    });
  });
}

void latent_heads_grad(const Context& context, const LatentHeadsGradArgs& args) {
  HONE_ASSERT(args.sizes.rope_dim <= kMaxRopeDim);
  context.launch([args](ThreadPool& pool) {
    dispatch_float(args.dk.dtype, [&](auto element) {
      pool.parallel_ranges(args.dk.shape[0], kTokensPerTask, [&](int64_t begin, int64_t end) {
        for (int64_t token = begin; token < end; ++token) backward_token<decltype(element)>(args, token);
      });
    });
  });
}

}  // namespace hone::cpu
