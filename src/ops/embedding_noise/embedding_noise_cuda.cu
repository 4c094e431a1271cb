#include "core/stream/cuda_launch.h"
#include "ops/embedding_noise/embedding_noise.h"

namespace hone::cuda {

namespace {

constexpr int kThreads = 256;

struct Documents {
  const int32_t* cu_seqlens;
  int64_t count;
};

/// A thread processes four features of a row.
template <class T>
__global__ void __launch_bounds__(kThreads)
    noise_kernel(const T* x, T* y, int64_t rows, int64_t hidden, float alpha, const Documents documents,
                 const StepScalars* scalars, const int64_t* sample_ids, const int32_t* positions) {
  const int64_t groups = (hidden + 3) / 4, index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t row = index / groups, group = index - row * groups;
  if (row >= rows) return;
  const int64_t document = document_of_row(documents.cu_seqlens, documents.count, row);
  const auto length = static_cast<float>(documents.cu_seqlens[document + 1] - documents.cu_seqlens[document]);
  const float scale = alpha / sqrtf(length * static_cast<float>(hidden));
  const auto draws = embedding_noise_draws(embedding_noise_key(scalars->seed), sample_ids[row], positions[row],
                                           static_cast<uint32_t>(group));
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (group * 4 + i >= hidden) return;
    const int64_t at = row * hidden + group * 4 + i;
    y[at] = from_float<T>(to_float(x[at]) + scale * draws[i]);
  }
}

}  // namespace

void embedding_noise(const Context& context, const EmbeddingNoiseArgs& args) {
  const int64_t rows = args.x.shape[0], hidden = args.x.shape[1], threads = rows * ((hidden + 3) / 4);
  if (context.dry() || threads == 0) return;
  const EmbeddingNoise& noise = args.noise;
  const Documents documents{elements<int32_t>(noise.sequences.cu_seqlens), noise.sequences.num_documents};
  cuda::dispatch_float(args.x.dtype, [&](auto element) {
    using T = decltype(element);
    noise_kernel<T><<<blocks_for(threads, kThreads), kThreads, 0, stream_of(context)>>>(
        elements<T>(args.x), elements<T>(args.y), rows, hidden, noise.alpha, documents, noise.rows.scalars,
        elements<int64_t>(noise.rows.sample_ids), elements<int32_t>(noise.rows.positions));
  });
  check_launch("adding noise to embeddings");
}

}  // namespace hone::cuda
