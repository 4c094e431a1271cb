#include <algorithm>
#include <cstring>

#include "core/cpu/thread_pool.h"
#include "kernels/cpu/row_math/row_blocks.h"
#include "ops/causal_conv/causal_conv.h"

namespace hone::cpu {

namespace {

/// Rows of a task, and rows whose gradients of w are summed together.
constexpr int64_t kRows = 64;
/// Channels that are processed together: the rows of a task stay in L2.
constexpr int64_t kChannels = 128;

/// The document of each row.
class Documents {
 public:
  Documents(ArenaScope& memory, const PackedSequences& sequences, int64_t rows)
      : sequences_(sequences), of_row_(memory.take({rows}, DType::kI32)) {}

  void prepare() const {
    for (int32_t n = 0; n < static_cast<int32_t>(sequences_.num_documents); ++n) {
      std::fill(of_row_.as<int32_t>() + offset(n), of_row_.as<int32_t>() + offset(n + 1), n);
    }
  }
  int64_t of(int64_t row) const { return of_row_.as<int32_t>()[row]; }
  int64_t begin(int64_t row) const { return offset(of(row)); }

 private:
  int64_t offset(int64_t n) const { return sequences_.cu_seqlens.as<int32_t>()[n]; }

  PackedSequences sequences_;
  Tensor of_row_;
};

/// w as float32 [K, C], so that a tap is a row.
Tensor taps_of(ArenaScope& memory, const Tensor& w) { return memory.take({w.shape[2], w.shape[0]}, DType::kF32); }

void widen_taps(const Tensor& w, const Tensor& taps) {
  const int64_t count = w.shape[2], channels = w.shape[0];
  dispatch_float(w.dtype, [&](auto element) {
    using T = decltype(element);
    for (int64_t j = 0; j < count; ++j) {
      for (int64_t c = 0; c < channels; ++c) {
        taps.as<float>()[j * channels + c] = static_cast<float>(w.as<T>()[c * count + j]);
      }
    }
  });
}

struct Convolution {
  Tensor x, taps, bias;
  Documents documents;
  ConvState state;

  int64_t channels() const { return x.shape[1]; }
  int64_t count() const { return taps.shape[0]; }
  const float* tap(int64_t age, int64_t channel) const {
    return taps.as<float>() + (count() - 1 - age) * channels() + channel;
  }

  /// Channels [channel, channel + n) of the input `age` rows before `row`; null for zeros.
  const float* input(const RowMath& math, int64_t row, int64_t age, int64_t channel, float* buffer, int64_t n) const {
    const int64_t place = row - age - documents.begin(row);
    if (place >= 0) return load_block(math, x, (row - age) * channels() + channel, buffer, n);
    const int64_t document = documents.of(row);
    if (!state.inputs.defined() || state.lengths.as<int32_t>()[document] == 0) return nullptr;
    const int64_t kept = state.inputs.shape[1];
    return load_block(math, state.inputs, (document * kept + kept + place) * channels() + channel, buffer, n);
  }

  void sum(const RowMath& math, int64_t row, int64_t channel, float* z, int64_t n) const {
    if (bias.defined()) {
      float buffer[kChannels];
      std::copy_n(load_block(math, bias, channel, buffer, n), n, z);
    } else {
      std::fill_n(z, n, 0.0f);
    }
    for (int64_t age = count() - 1; age >= 0; --age) {
      float buffer[kChannels], product[kChannels];
      const float* values = input(math, row, age, channel, buffer, n);
      if (values == nullptr) continue;
      math.multiply(tap(age, channel), values, product, n);
      math.add(z, product, z, n);
    }
  }
};

template <class Body>
void for_channels(int64_t channels, const Body& body) {
  for (int64_t c = 0; c < channels; c += kChannels) body(c, std::min(kChannels, channels - c));
}

/// Moves the last inputs of sequence n into its state.
void advance(const CausalConvArgs& args, int64_t n) {
  const Tensor& inputs = args.state.inputs;
  const int32_t* offsets = args.sequences.cu_seqlens.as<int32_t>();
  const int64_t kept = inputs.shape[1], added = offsets[n + 1] - offsets[n],
                reused = std::max<int64_t>(kept - added, 0);
  const auto row_bytes = static_cast<size_t>(inputs.shape[2]) * size_of(inputs.dtype);
  if (added == 0 || kept == 0) return;
  std::byte* state = inputs.data + static_cast<size_t>(n * kept) * row_bytes;
  if (args.state.lengths.as<int32_t>()[n] == 0) {
    std::memset(state, 0, static_cast<size_t>(reused) * row_bytes);
  } else {
    std::memmove(state, state + static_cast<size_t>(kept - reused) * row_bytes,
                 static_cast<size_t>(reused) * row_bytes);
  }
  const int64_t taken = kept - reused;
  std::memcpy(state + static_cast<size_t>(reused) * row_bytes,
              args.x.data + static_cast<size_t>(offsets[n + 1] - taken) * row_bytes,
              static_cast<size_t>(taken) * row_bytes);
}

/// Gradients of rows [begin, end) in channels [channel, channel + n); dw is added to dw_sums [K, C] and dbias to
/// dbias_sums [C] unless null.
void differentiate(const CausalConvGradArgs& args, const Convolution& conv, int64_t begin, int64_t end, int64_t channel,
                   int64_t n, float* dw_sums, float* dbias_sums) {
  const RowMath& math = row_math();
  const int64_t channels = conv.channels(), rows = args.x.shape[0], last = std::min(rows, end + conv.count() - 1);
  float dz[kRows + kMaxConvTaps - 1][kChannels];
  for (int64_t row = begin; row < last; ++row) {
    float z[kChannels], y[kChannels], slope[kChannels], buffer[kChannels];
    conv.sum(math, row, channel, z, n);
    math.silu_and_slope(z, y, slope, n);
    math.multiply(slope, load_block(math, args.dy, row * channels + channel, buffer, n), dz[row - begin], n);
  }
  for (int64_t row = begin; row < end; ++row) {
    float sum[kChannels] = {}, product[kChannels], buffer[kChannels];
    for (int64_t age = 0; args.dx.wanted() && age < conv.count(); ++age) {
      if (row + age >= rows || conv.documents.of(row + age) != conv.documents.of(row)) break;
      math.multiply(conv.tap(age, channel), dz[row + age - begin], product, n);
      math.add(sum, product, sum, n);
    }
    if (args.dx.wanted()) store_block(math, sum, args.dx, row * channels + channel, n);
    if (dbias_sums != nullptr) math.add(dbias_sums + channel, dz[row - begin], dbias_sums + channel, n);
    for (int64_t age = 0; dw_sums != nullptr && age < conv.count(); ++age) {
      const float* values = conv.input(math, row, age, channel, buffer, n);
      if (values == nullptr) break;
      math.multiply(dz[row - begin], values, product, n);
      float* sums = dw_sums + (conv.count() - 1 - age) * channels + channel;
      math.add(sums, product, sums, n);
    }
  }
}

/// dw[c, j] (or, with K = 1, dbias[c]) = Σ over chunks of partial [chunks, K, C], in order.
void sum_chunks(const Tensor& partial, const GradDest& dw) {
  const int64_t chunks = partial.shape[0], taps = partial.shape[1], channels = partial.shape[2];
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t j = 0; j < taps; ++j) {
      float sum = 0;
      for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        sum += partial.as<float>()[(chunk * taps + j) * channels + c];
      }
      float& dst = dw.dst.as<float>()[c * taps + j];
      dst = dw.beta != 0.0f ? dst + sum : sum;
    }
  }
}

}  // namespace

void causal_conv(const Context& context, const CausalConvArgs& args) {
  const int64_t rows = args.x.shape[0], channels = args.x.shape[1];
  ArenaScope memory(context.scratch());
  const Convolution conv{args.x, taps_of(memory, args.w), args.bias, Documents(memory, args.sequences, rows),
                         args.state};
  context.launch([args, conv, rows, channels](ThreadPool& pool) {
    const RowMath& math = row_math();
    conv.documents.prepare();
    widen_taps(args.w, conv.taps);
    pool.parallel_ranges(rows, kRows, [&](int64_t begin, int64_t end) {
      for_channels(channels, [&](int64_t channel, int64_t n) {
        for (int64_t row = begin; row < end; ++row) {
          float z[kChannels];
          conv.sum(math, row, channel, z, n);
          math.silu(z, z, n);
          store_block(math, static_cast<const float*>(z), args.y, row * channels + channel, n);
        }
      });
    });
    if (!args.state.inputs.defined()) return;
    pool.parallel_for(args.sequences.num_documents, [&](int64_t n, int) { advance(args, n); });
  });
}

void causal_conv_grad(const Context& context, const CausalConvGradArgs& args) {
  const int64_t rows = args.x.shape[0], channels = args.x.shape[1], chunks = (rows + kRows - 1) / kRows;
  ArenaScope memory(context.scratch());
  const Convolution conv{args.x, taps_of(memory, args.w), args.bias, Documents(memory, args.sequences, rows), {}};
  Tensor partial, bias_partial;
  if (args.dw.wanted()) partial = memory.take({chunks, args.w.shape[2], channels}, DType::kF32);
  if (args.dbias.wanted()) bias_partial = memory.take({chunks, 1, channels}, DType::kF32);
  context.launch([args, conv, partial, bias_partial, rows, channels, chunks](ThreadPool& pool) {
    conv.documents.prepare();
    widen_taps(args.w, conv.taps);
    pool.parallel_for(chunks, [&](int64_t chunk, int) {
      const auto cleared = [&](const Tensor& parts) -> float* {
        if (!parts.defined()) return nullptr;
        const int64_t size = parts.shape[1] * channels;
        float* sums = parts.as<float>() + chunk * size;
        std::fill_n(sums, size, 0.0f);
        return sums;
      };
      float *const dw_sums = cleared(partial), *const bias_sums = cleared(bias_partial);
      for_channels(channels, [&](int64_t channel, int64_t n) {
        differentiate(args, conv, chunk * kRows, std::min(rows, (chunk + 1) * kRows), channel, n, dw_sums, bias_sums);
      });
    });
    if (partial.defined()) sum_chunks(partial, args.dw);
    if (bias_partial.defined()) sum_chunks(bias_partial, args.dbias);
  });
}

}  // namespace hone::cpu
