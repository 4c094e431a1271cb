#include <algorithm>
#include <cmath>

#include "core/cpu/thread_pool.h"
#include "ops/embedding_noise/embedding_noise.h"

namespace hone::cpu {

void embedding_noise(const Context& context, const EmbeddingNoiseArgs& args) {
  context.launch([args](ThreadPool& pool) {
    const EmbeddingNoise& noise = args.noise;
    const uint64_t key = embedding_noise_key(noise.rows.scalars->seed);
    const int64_t hidden = args.x.shape[1];
    const int32_t* cu_seqlens = noise.sequences.cu_seqlens.as<int32_t>();
    dispatch_float(args.x.dtype, [&](auto element) {
      using T = decltype(element);
      pool.parallel_ranges(args.x.shape[0], 8, [&](int64_t row, int64_t end) {
        for (; row < end; ++row) {
          const int64_t document = document_of_row(cu_seqlens, noise.sequences.num_documents, row);
          const auto length = static_cast<float>(cu_seqlens[document + 1] - cu_seqlens[document]);
          const float scale = noise.alpha / std::sqrt(length * static_cast<float>(hidden));
          const T* x = args.x.as<T>() + row * hidden;
          T* y = args.y.as<T>() + row * hidden;
          for (int64_t begin = 0; begin < hidden; begin += 4) {
            const auto draws =
                embedding_noise_draws(key, noise.rows.sample_ids.as<int64_t>()[row],
                                      noise.rows.positions.as<int32_t>()[row], static_cast<uint32_t>(begin / 4));
            for (int64_t i = begin; i < std::min(hidden, begin + 4); ++i) {
              y[i] = T(static_cast<float>(x[i]) + scale * draws[static_cast<size_t>(i - begin)]);
            }
          }
        }
      });
    });
  });
}

}  // namespace hone::cpu
