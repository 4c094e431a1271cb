// The codes and scales that a GPU makes, for tests and for runs on a CPU, which multiply their values.
#include <algorithm>
#include <vector>

#include "core/cpu/thread_pool.h"
#include "formats/magnitude.h"
#include "kernels/cpu/row_math/row_blocks.h"
#include "ops/fp8_operand/fp8_operand.h"

namespace hone::cpu {

namespace {

void store_codes(Fp8Code code, float inverse, const float* values, int64_t n, int64_t step, uint8_t* codes) {
  for (int64_t i = 0; i < n; ++i) {
    const float scaled = values[i] * inverse;
    codes[i * step] = code == Fp8Code::kE4m3 ? e4m3_code(scaled) : e5m2_code(scaled);
  }
}

/// Row `row` of a matrix [rows, k] of float32 or bfloat16, times factors, in `row_values`.
void load_row(const Tensor& x, const Tensor& factors, int64_t row, std::vector<float>& row_values) {
  const int64_t k = x.shape[1];
  row_values.resize(static_cast<size_t>(k));
  const RowMath& math = row_math();
  math.scale(1.0f, load_block(math, x, row * k, row_values.data(), k), row_values.data(), k);
  if (!factors.defined()) return;
  const float* factor = factors.as<float>();
  for (int64_t i = 0; i < k; ++i) row_values[static_cast<size_t>(i)] *= factor[i];
}

/// Multiplies a row by the factors of its group.
void multiply_by_group(const Fp8GroupFactors& factors, int64_t row, float* values, int64_t k) {
  if (!factors.offsets.defined()) return;
  const auto* offsets = factors.offsets.as<int64_t>();
  const int64_t groups = factors.offsets.numel() - 1, width = k / factors.parts;
  if (row >= offsets[groups]) return;
  const int64_t group = std::upper_bound(offsets, offsets + groups + 1, row) - offsets - 1;
  for (int64_t i = 0; i < k; ++i) {
    values[i] *= factors.scales[(group * factors.parts + i / width) * factors.pitch];
  }
}

/// Row `row` of an operand that has `n` values before its zeros; `one` is the scale of tensorwise.
void store_row(Fp8Recipe recipe, const Fp8Operand& to, int64_t row, const float* values, int64_t n,
               const Fp8Scale& one) {
  const int64_t rows = to.codes.shape[0], k = to.codes.shape[1];
  const int64_t width = recipe == Fp8Recipe::kBlockwise ? kFp8Block : k;
  uint8_t* codes = to.codes.as<uint8_t>() + row * k;
  std::fill(codes + n, codes + k, uint8_t{0});
  for (int64_t begin = 0; begin < k; begin += width) {
    const int64_t count = std::clamp<int64_t>(n - begin, 0, width);
    Fp8Scale scale = one;
    if (recipe != Fp8Recipe::kTensorwise) {
      scale = fp8_scale(magnitude_bits(values + begin, count), to.code);
      to.scales.as<float>()[begin / width * rows + row] = scale.scale;
    }
    store_codes(to.code, scale.inverse, values + begin, count, 1, codes + begin);
  }
}

/// Calls body(row, values) for each row of a matrix.
template <class Body>
void for_rows(ThreadPool& pool, const Tensor& x, const Tensor& factors, const Body& body) {
  pool.parallel_ranges(x.shape[0], 1, [&](int64_t begin, int64_t end) {
    std::vector<float> values;
    for (int64_t row = begin; row < end; ++row) {
      load_row(x, factors, row, values);
      body(row, values.data());
    }
  });
}

/// The largest magnitude of each row.
std::vector<uint32_t> row_magnitudes(ThreadPool& pool, const Tensor& x, const Tensor& factors) {
  std::vector<uint32_t> largest(static_cast<size_t>(x.shape[0]));
  for_rows(pool, x, factors, [&](int64_t row, const float* values) {
    largest[static_cast<size_t>(row)] = magnitude_bits(values, x.shape[1]);
  });
  return largest;
}

}  // namespace

namespace {

/// The scale of a whole operand of tensorwise, which is written; of the others none.
Fp8Scale scale_of_all(ThreadPool& pool, Fp8Recipe recipe, const Tensor& x, const Tensor& factors,
                      const Fp8Operand& to) {
  if (recipe != Fp8Recipe::kTensorwise) return {};
  const std::vector<uint32_t> largest = row_magnitudes(pool, x, factors);
  const Fp8Scale one = fp8_scale(largest.empty() ? 0 : *std::max_element(largest.begin(), largest.end()), to.code);
  to.scales.as<float>()[0] = one.scale;
  return one;
}

}  // namespace

void fp8_rows(const Context& context, const Fp8RowsArgs& args) {
  context.launch([args](ThreadPool& pool) {
    const int64_t k = args.x.shape[1];
    const Fp8Scale one = scale_of_all(pool, args.recipe, args.x, args.factors, args.to);
    for_rows(pool, args.x, args.factors, [&](int64_t row, float* values) {
      multiply_by_group(args.group_factors, row, values, k);
      store_row(args.recipe, args.to, row, values, k, one);
    });
    const std::vector<float> zeros(static_cast<size_t>(k));
    for (int64_t row = args.x.shape[0]; row < args.to.codes.shape[0]; ++row) {
      store_row(args.recipe, args.to, row, zeros.data(), k, one);
    }
  });
}

void fp8_columns(const Context& context, const Fp8ColumnsArgs& args) {
  context.launch([args](ThreadPool& pool) {
    const int64_t tokens = args.x.shape[0], k = args.x.shape[1];
    const Fp8Scale one = scale_of_all(pool, args.recipe, args.x, {}, args.to);
    pool.parallel_ranges(k / kFp8Unit, 1, [&](int64_t begin, int64_t end) {
      std::vector<float> columns(static_cast<size_t>(kFp8Unit * tokens)), read(static_cast<size_t>(kFp8Unit));
      for (int64_t first = begin * kFp8Unit; first < end * kFp8Unit; first += kFp8Unit) {
        for (int64_t token = 0; token < tokens; ++token) {
          const float* row = load_block(row_math(), args.x, token * k + first, read.data(), kFp8Unit);
          for (int64_t i = 0; i < kFp8Unit; ++i) columns[static_cast<size_t>(i * tokens + token)] = row[i];
        }
        for (int64_t i = 0; i < kFp8Unit; ++i) {
          store_row(args.recipe, args.to, first + i, columns.data() + i * tokens, tokens, one);
        }
      }
    });
  });
}

namespace {

/// Codes and scales of a packed weight.
void copy_packed(ThreadPool& pool, const Fp8WeightArgs& args) {
  const PackedLayout& layout = args.w.packed->layout;
  const auto* from = reinterpret_cast<const uint8_t*>(args.w.packed->chunks.data);
  const auto* from_scales = reinterpret_cast<const float*>(from + layout.scales);
  auto* codes = args.to.codes.as<uint8_t>();
  auto* scales = args.to.scales.as<float>();
  const int64_t n = layout.rows, k = layout.columns;
  pool.parallel_ranges(n, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t column = 0; column < k; ++column) {
        codes[args.transposed ? column * n + row : row * k + column] = from[row * k + column];
      }
    }
  });
  if (args.recipe == Fp8Recipe::kRowwise) {
    std::copy_n(from_scales, n, args.transposed ? args.factors.as<float>() : scales);
    return;
  }
  const int64_t pitch = args.to.scales.shape[1];
  std::fill_n(scales, args.to.scales.numel(), 0.0f);
  for (int64_t row = 0; row < (n + kFp8Block - 1) / kFp8Block; ++row) {
    for (int64_t column = 0; column < layout.scale_columns; ++column) {
      scales[args.transposed ? column * pitch + row : row * pitch + column] =
          from_scales[row * layout.scale_columns + column];
    }
  }
}

}  // namespace

void fp8_weight(const Context& context, const Fp8WeightArgs& args) {
  context.launch([args](ThreadPool& pool) {
    if (args.factors.defined()) std::fill_n(args.to.scales.as<float>(), args.to.scales.numel(), 1.0f);
    if (args.w.packed) return copy_packed(pool, args);
    const Tensor &w = args.w.payload, &of_groups = args.factors.defined() ? args.factors : args.to.scales;
    const int64_t n = w.shape[0], k = w.shape[1];
    auto* scales = of_groups.as<float>();
    // One block after another: [rows, columns] that share a scale.
    const bool tensor = args.recipe == Fp8Recipe::kTensorwise, blocks = args.recipe == Fp8Recipe::kBlockwise;
    const int64_t rows = blocks ? kFp8Block : tensor ? n : 1, columns = blocks ? kFp8Block : k;
    const int64_t down = (n + rows - 1) / rows, across = (k + columns - 1) / columns;
    std::vector<uint32_t> largest(static_cast<size_t>(down * across), 0);
    std::vector<float> values;
    for (int64_t row = 0; row < n; ++row) {
      load_row(w, {}, row, values);
      for (int64_t block = 0; block < across; ++block) {
        uint32_t& of_block = largest[static_cast<size_t>(row / rows * across + block)];
        const int64_t begin = block * columns;
        of_block = std::max(of_block, magnitude_bits(values.data() + begin, std::min(columns, k - begin)));
      }
    }
    std::fill_n(scales, of_groups.numel(), 0.0f);
    const int64_t pitch = blocks ? args.to.scales.shape[1] : 1;
    for (int64_t row = 0; row < down; ++row) {
      for (int64_t block = 0; block < across; ++block) {
        scales[args.transposed ? block * pitch + row : row * pitch + block] =
            fp8_scale(largest[static_cast<size_t>(row * across + block)], args.to.code).scale;
      }
    }
    for_rows(pool, w, {}, [&](int64_t row, const float* of_row) {
      for (int64_t block = 0; block < across; ++block) {
        const int64_t begin = block * columns, count = std::min(columns, k - begin);
        const Fp8Scale scale = fp8_scale(largest[static_cast<size_t>(row / rows * across + block)], args.to.code);
        uint8_t* to = args.to.codes.as<uint8_t>() + (args.transposed ? begin * n + row : row * k + begin);
        store_codes(args.to.code, scale.inverse, of_row + begin, count, args.transposed ? n : 1, to);
      }
    });
  });
}

}  // namespace hone::cpu
