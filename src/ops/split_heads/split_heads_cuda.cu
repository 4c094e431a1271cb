#include "kernels/cuda/rows/vectors_cuda.h"
#include "ops/split_heads/split_heads.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 256;

/// The destinations of the columns of x; widths in units that a thread moves.
template <class T>
struct Columns {
  T* x;
  struct {
    T* y;            // output of the part; null: zeros
    int begin, end;  // columns of a head
    int in_output;   // first column of the part
    int stride;      // row stride of the output
  } parts[kMaxHeadParts];
  int count;
  int head_width, width;
  int64_t total;  // units of x
  bool accumulate;
};

/// kVector elements per thread; forward writes the parts, backward writes x.
template <class T, int kVector, bool kBackward>
__global__ void __launch_bounds__(kThreads) move_columns(const Columns<T> c) {
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= c.total) return;
  const int64_t row = index / c.width;
  const int column = static_cast<int>(index - row * c.width), head = column / c.head_width;
  const int own = column - head * c.head_width;
  T* x = c.x + index * kVector;
#pragma unroll
  for (int p = 0; p < kMaxHeadParts; ++p) {
    if (p >= c.count || own < c.parts[p].begin || own >= c.parts[p].end) continue;
    const auto& part = c.parts[p];
    const int to = part.in_output + head * (part.end - part.begin) + own - part.begin;
    T* y = part.y == nullptr ? nullptr : part.y + (row * part.stride + to) * kVector;
    if constexpr (!kBackward) {
      store_vector(y, load_vector<kVector>(x));
    } else {
      float values[kVector] = {}, before[kVector];
      if (y != nullptr) load_floats(y, values);
      if (c.accumulate) {
        load_floats(x, before);
#pragma unroll
        for (int i = 0; i < kVector; ++i) values[i] += before[i];
      }
      if constexpr (kVector == 1) {
        *x = from_float<T>(values[0]);
      } else {
        store_floats(x, values);
      }
    }
  }
}

template <bool kBackward>
void move(const Context& context, const Tensor& x, const std::array<Tensor, kMaxHeadParts>& outputs,
          const HeadParts& parts, bool accumulate) {
  if (context.dry() || x.numel() == 0) return;
  cuda::dispatch_float(x.dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int kVector = 16 / sizeof(T);
    bool vectors = allows_vectors(x, x.shape[1], kVector);
    for (const HeadPart& part : parts.list) {
      vectors = vectors && part.width % kVector == 0 &&
                allows_vectors(outputs[static_cast<size_t>(part.output)], kVector, kVector);
    }
    const int unit = vectors ? kVector : 1;
    HONE_ASSERT(x.shape[1] <= INT32_MAX);
    Columns<T> columns{.x = elements<T>(x),
                       .parts = {},
                       .count = static_cast<int>(parts.list.size()),
                       .head_width = static_cast<int>(parts.width() / unit),
                       .width = static_cast<int>(x.shape[1] / unit),
                       .total = x.numel() / unit,
                       .accumulate = accumulate};
    int before = 0;
    for (size_t p = 0; p < parts.list.size(); ++p) {
      const HeadPart& part = parts.list[p];
      const int own = static_cast<int>(part.width / unit);
      columns.parts[p] = {elements<T>(outputs[static_cast<size_t>(part.output)]), before, before + own,
                          static_cast<int>(parts.begin_in_output(p) / unit),
                          static_cast<int>(parts.output_width(part.output) / unit)};
      before += own;
    }
    const auto kernel = vectors ? &move_columns<T, kVector, kBackward> : &move_columns<T, 1, kBackward>;
    kernel<<<blocks_for(columns.total, kThreads), kThreads, 0, stream_of(context)>>>(columns);
  });
  check_launch("splitting heads");
}

}  // namespace

void split_heads(const Context& context, const SplitHeadsArgs& args) {
  move<false>(context, args.x, args.y, args.parts, false);
}

void split_heads_grad(const Context& context, const SplitHeadsGradArgs& args) {
  move<true>(context, args.dx.dst, args.dy, args.parts, args.dx.beta != 0.0f);
}

}  // namespace hone::cuda
