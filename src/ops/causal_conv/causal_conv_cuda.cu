#include "kernels/cuda/rows/chunk_sums_cuda.h"
#include "ops/causal_conv/causal_conv.h"
#include "ops/rms_norm/norm_weight_cuda.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 128, kTaps = static_cast<int>(kMaxConvTaps);
/// Rows that a thread processes; backward sums dw over them.
constexpr int kRows = 32, kBackwardRows = 64;

template <class T>
struct Convolution {
  const T* x;
  NormWeight w, bias;  // bias: without values if there is none
  const int32_t* cu_seqlens;
  int documents;
  int64_t rows, channels;
  int taps;
  unsigned columns;  // CTAs across the channels
  T* y;              // forward
  const T* state;    // [N, K - 1, C] or null
  const int32_t* lengths;
  const T* dy;  // backward
  T* dx;        // null: not wanted
  bool accumulate;
  float* partial;       // [chunks, C, K] or null
  float* bias_partial;  // [chunks, C] or null

  // A grid of one dimension: the others end at 65,535, fewer than the chunks of some million rows.
  __device__ unsigned column() const { return blockIdx.x % columns; }
  __device__ unsigned chunk() const { return blockIdx.x / columns; }

  /// The last document that starts at or before `row`.
  __device__ int document_of(int64_t row) const {
    int low = 0, high = documents;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (cu_seqlens[middle] <= row ? low : high) = middle;
    }
    return low;
  }
};

/// Taps of a thread's channels, padded with zeros for shorter convolutions.
template <int kVector, class T>
__device__ void load_taps(const Convolution<T>& a, int64_t channel, float (&w)[kTaps][kVector]) {
#pragma unroll
  for (int age = 0; age < kTaps; ++age) {
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      w[age][i] = age < a.taps ? a.w.at((channel + i) * a.taps + a.taps - 1 - age) : 0.0f;
  }
}

/// The inputs of the last rows of a thread, and its current document. window[age] is the input `age` rows ago.
template <class T, int kVector>
struct Walk {
  const Convolution<T>& a;
  int64_t channel, begin, end;
  int document;
  float window[kTaps][kVector];
  float bias[kVector];

  __device__ Walk(const Convolution<T>& convolution, int64_t row, int64_t first_channel)
      : a(convolution), channel(first_channel), document(convolution.document_of(row)) {
    begin = a.cu_seqlens[document], end = a.cu_seqlens[document + 1];
#pragma unroll
    for (int age = 1; age < kTaps; ++age) load_input(row, age);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      window[0][i] = 0.0f;
      bias[i] = a.bias.values != nullptr ? a.bias.at(channel + i) : 0.0f;
    }
  }

  __device__ void load_input(int64_t row, int age) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) window[age][i] = 0.0f;
    const int64_t place = row - age - begin;
    if (age >= a.taps) return;
    if (place >= 0) {
      load_floats(a.x + (row - age) * a.channels + channel, window[age]);
    } else if (a.state != nullptr && a.lengths[document] > 0) {
      load_floats(a.state + ((int64_t{document} + 1) * (a.taps - 1) + place) * a.channels + channel, window[age]);
    }
  }

  /// Advances to `row`, which follows the previous one.
  __device__ void enter(int64_t row) {
    if (row >= end) {
      while (row >= end) begin = end, end = a.cu_seqlens[++document + 1];
#pragma unroll
      for (int age = 1; age < kTaps; ++age) load_input(row, age);
    }
    load_floats(a.x + row * a.channels + channel, window[0]);
  }

  __device__ void leave() {
#pragma unroll
    for (int age = kTaps - 1; age > 0; --age) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) window[age][i] = window[age - 1][i];
    }
  }

  __device__ void sum(const float (&w)[kTaps][kVector], float (&z)[kVector]) const {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      z[i] = bias[i];
#pragma unroll
      for (int age = kTaps - 1; age >= 0; --age) z[i] = fmaf(w[age][i], window[age][i], z[i]);
    }
  }
};

template <class T, int kVector>
__device__ void store_values(T* to, const float (&values)[kVector]) {
  if constexpr (kVector == 1) {
    *to = from_float<T>(values[0]);
  } else {
    store_floats(to, values);
  }
}

__device__ inline float sigmoid(float z) { return 1.0f / (1.0f + __expf(-z)); }

template <class T, int kVector>
__global__ void __launch_bounds__(kThreads) conv_kernel(const Convolution<T> a) {
  const int64_t channel = (int64_t{a.column()} * kThreads + threadIdx.x) * kVector;
  const int64_t first = int64_t{a.chunk()} * kRows;
  if (channel >= a.channels) return;
  float w[kTaps][kVector];
  load_taps(a, channel, w);
  Walk<T, kVector> walk(a, first, channel);
  for (int64_t row = first; row < min(a.rows, first + kRows); ++row) {
    walk.enter(row);
    float z[kVector];
    walk.sum(w, z);
#pragma unroll
    for (int i = 0; i < kVector; ++i) z[i] *= sigmoid(z[i]);
    store_values(a.y + row * a.channels + channel, z);
    walk.leave();
  }
}

/// As conv_kernel, including the rows after the last one that contribute to the gradients of the last inputs.
template <class T, int kVector>
__global__ void __launch_bounds__(kThreads) conv_grad_kernel(const Convolution<T> a) {
  const int64_t channel = (int64_t{a.column()} * kThreads + threadIdx.x) * kVector;
  const int64_t first = int64_t{a.chunk()} * kBackwardRows, last = min(a.rows, first + kBackwardRows);
  if (channel >= a.channels) return;
  float w[kTaps][kVector], dw[kTaps][kVector] = {};
  float dbias[kVector] = {};
  float dx[kTaps][kVector] = {};  // dx[age]: partial sum for the input `age` rows ago
  load_taps(a, channel, w);
  Walk<T, kVector> walk(a, first, channel);
  for (int64_t row = first; row < last + kTaps - 1; ++row) {
    if (row < a.rows) {
      walk.enter(row);
      float z[kVector], dz[kVector];
      walk.sum(w, z);
      load_floats(a.dy + row * a.channels + channel, dz);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const float s = sigmoid(z[i]);
        dz[i] *= s * (1.0f + z[i] * (1.0f - s));
        if (row < last) dbias[i] += dz[i];
      }
#pragma unroll
      for (int age = 0; age < kTaps; ++age) {
        if (row - age < walk.begin) continue;
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          dx[age][i] = fmaf(w[age][i], dz[i], dx[age][i]);
          if (row < last) dw[age][i] = fmaf(dz[i], walk.window[age][i], dw[age][i]);
        }
      }
      walk.leave();
    }
    const int64_t done = row - (kTaps - 1);  // no later row contributes to it
    if (a.dx != nullptr && done >= first && done < last) {
      T* to = a.dx + done * a.channels + channel;
      if (a.accumulate) {
        float before[kVector];
        load_floats(to, before);
#pragma unroll
        for (int i = 0; i < kVector; ++i) dx[kTaps - 1][i] += before[i];
      }
      store_values(to, dx[kTaps - 1]);
    }
#pragma unroll
    for (int age = kTaps - 1; age > 0; --age) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) dx[age][i] = dx[age - 1][i];
    }
#pragma unroll
    for (int i = 0; i < kVector; ++i) dx[0][i] = 0.0f;
  }
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    if (a.bias_partial != nullptr) a.bias_partial[int64_t{a.chunk()} * a.channels + channel + i] = dbias[i];
  }
  if (a.partial == nullptr) return;
#pragma unroll
  for (int age = 0; age < kTaps; ++age) {
    if (age >= a.taps) continue;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      a.partial[(int64_t{a.chunk()} * a.channels + channel + i) * a.taps + a.taps - 1 - age] = dw[age][i];
    }
  }
}

/// Moves the last inputs of a sequence into its state, one thread per channel.
template <class T>
__global__ void __launch_bounds__(kThreads) advance_kernel(const Convolution<T> a, T* state) {
  const int64_t channel = int64_t{a.column()} * kThreads + threadIdx.x;
  const int n = static_cast<int>(a.chunk()), kept = a.taps - 1;
  const int end = a.cu_seqlens[n + 1], added = end - a.cu_seqlens[n];
  if (channel >= a.channels || added == 0) return;
  const bool fresh = a.lengths[n] == 0;
  for (int i = 0; i < kept; ++i) {       // in increasing order: place i reads place i + added or later
    const int place = i + added - kept;  // index in the new rows
    T& to = state[(int64_t{n} * kept + i) * a.channels + channel];
    if (place >= 0) {
      to = a.x[(int64_t{end} - kept + i) * a.channels + channel];
    } else {
      to = fresh ? from_float<T>(0.0f) : state[(int64_t{n} * kept + i + added) * a.channels + channel];
    }
  }
}

template <class T>
Convolution<T> convolution_of(const Tensor& x, const Tensor& w, const Tensor& bias, const PackedSequences& sequences) {
  Convolution<T> a{};
  a.x = elements<T>(x);
  a.w = NormWeight(w);
  a.bias = NormWeight(bias);
  a.cu_seqlens = elements<int32_t>(sequences.cu_seqlens);
  a.documents = static_cast<int>(sequences.num_documents);
  a.rows = x.shape[0];
  a.channels = x.shape[1];
  a.taps = static_cast<int>(w.shape[2]);
  return a;
}

constexpr int kVector = 4;

bool aligned(const Context& context, std::initializer_list<Tensor> tensors, int64_t channels) {
  bool vectors = !context.stream().general_kernels();
  for (const Tensor& tensor : tensors) vectors = vectors && allows_vectors(tensor, channels, kVector);
  return vectors;
}

/// The CTAs for chunks of `rows_each` rows, `vector` channels a thread; sets a.columns.
template <class T>
unsigned blocks_of(Convolution<T>& a, int vector, int64_t rows, int rows_each) {
  a.columns = blocks_for(a.channels, kThreads * vector);
  return blocks_for(int64_t{a.columns} * blocks_for(rows, rows_each), 1);
}

}  // namespace

void causal_conv(const Context& context, const CausalConvArgs& args) {
  if (context.dry() || args.x.numel() == 0) return;
  cuda::dispatch_float(args.x.dtype, [&](auto element) {
    using T = decltype(element);
    Convolution<T> a = convolution_of<T>(args.x, args.w, args.bias, args.sequences);
    a.y = elements<T>(args.y);
    a.state = elements<T>(args.state.inputs);
    a.lengths = elements<int32_t>(args.state.lengths);
    if (aligned(context, {args.x, args.y, args.state.inputs}, a.channels)) {
      const unsigned blocks = blocks_of(a, kVector, a.rows, kRows);
      conv_kernel<T, kVector><<<blocks, kThreads, 0, stream_of(context)>>>(a);
    } else {
      const unsigned blocks = blocks_of(a, 1, a.rows, kRows);
      conv_kernel<T, 1><<<blocks, kThreads, 0, stream_of(context)>>>(a);
    }
    if (a.state != nullptr) {
      const unsigned blocks = blocks_of(a, 1, a.documents, 1);
      advance_kernel<T><<<blocks, kThreads, 0, stream_of(context)>>>(a, elements<T>(args.state.inputs));
    }
  });
  check_launch("convolving documents");
}

void causal_conv_grad(const Context& context, const CausalConvGradArgs& args) {
  const int64_t rows = args.x.shape[0], channels = args.x.shape[1];
  const int64_t chunks = (rows + kBackwardRows - 1) / kBackwardRows;
  ArenaScope memory(context.scratch());
  Tensor partial, bias_partial;
  if (args.dw.wanted()) partial = memory.take({chunks, args.w.numel()}, DType::kF32);
  if (args.dbias.wanted()) bias_partial = memory.take({chunks, channels}, DType::kF32);
  if (context.dry() || channels == 0) return;
  if (rows > 0 && (args.dx.wanted() || args.dw.wanted() || args.dbias.wanted())) {
    cuda::dispatch_float(args.x.dtype, [&](auto element) {
      using T = decltype(element);
      Convolution<T> a = convolution_of<T>(args.x, args.w, args.bias, args.sequences);
      a.dy = elements<T>(args.dy);
      a.dx = elements<T>(args.dx.dst);
      a.accumulate = args.dx.beta != 0.0f;
      a.partial = elements<float>(partial);
      a.bias_partial = elements<float>(bias_partial);
      if (aligned(context, {args.x, args.dy, args.dx.dst}, channels)) {
        const unsigned blocks = blocks_of(a, kVector, rows, kBackwardRows);
        conv_grad_kernel<T, kVector><<<blocks, kThreads, 0, stream_of(context)>>>(a);
      } else {
        const unsigned blocks = blocks_of(a, 1, rows, kBackwardRows);
        conv_grad_kernel<T, 1><<<blocks, kThreads, 0, stream_of(context)>>>(a);
      }
    });
    check_launch("differentiating a convolution");
  }
  if (args.dw.wanted()) sum_chunks(context, partial, {args.dw});
  if (args.dbias.wanted()) sum_chunks(context, bias_partial, {args.dbias});
}

}  // namespace hone::cuda
