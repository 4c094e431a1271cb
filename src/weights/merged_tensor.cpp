#include "weights/merged_tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/base/philox.h"
#include "kernels/cpu/row_math/row_math.h"

namespace hone {

namespace {

/// Numbers that are widened, added to and rounded together: as float32 they fit in the L2 cache.
constexpr int64_t kBlock = int64_t{1} << 17;

constexpr uint64_t kSampleUse = 0x6d65726765;

/// Rounds to the file's dtype.
void narrow(const float* from, DType dtype, std::byte* to, int64_t count) {
  switch (dtype) {
    case DType::kF32:
      std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
      return;
    case DType::kBF16:
      return row_math().narrow(from, reinterpret_cast<BFloat16*>(to), count);
    default:
      HONE_ASSERT(dtype == DType::kF16);
      for (int64_t i = 0; i < count; ++i) reinterpret_cast<Float16*>(to)[i] = Float16(from[i]);
  }
}

void widen(const std::byte* from, DType dtype, float* to, int64_t count) {
  switch (dtype) {
    case DType::kF32:
      std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
      return;
    case DType::kBF16:
      return row_math().widen(reinterpret_cast<const BFloat16*>(from), to, count);
    default:
      HONE_ASSERT(dtype == DType::kF16);
      for (int64_t i = 0; i < count; ++i) to[i] = reinterpret_cast<const Float16*>(from)[i];
  }
}

float rounded(double value, DType dtype) {
  const auto single = static_cast<float>(value);
  return dtype == DType::kBF16 ? BFloat16(single) : dtype == DType::kF16 ? Float16(single) : single;
}

/// Transposes `from` [rows, columns] into columns [first, first + rows) of a matrix with rows of `width`.
template <class T>
void turn(const T* from, int64_t rows, int64_t columns, T* to, int64_t first, int64_t width) {
  constexpr int64_t kTile = 32;
  for (int64_t row_tile = 0; row_tile < rows; row_tile += kTile) {
    for (int64_t tile = 0; tile < columns; tile += kTile) {
      const int64_t row_end = std::min(row_tile + kTile, rows), tile_end = std::min(tile + kTile, columns);
      for (int64_t column = tile; column < tile_end; ++column) {
        for (int64_t row = row_tile; row < row_end; ++row)
          to[column * width + first + row] = from[row * columns + column];
      }
    }
  }
}

void turn(const std::byte* from, size_t element, int64_t rows, int64_t columns, std::byte* to, int64_t first,
          int64_t width) {
  if (element == 2) {
    return turn(reinterpret_cast<const uint16_t*>(from), rows, columns, reinterpret_cast<uint16_t*>(to), first, width);
  }
  HONE_ASSERT(element == 4);
  turn(reinterpret_cast<const uint32_t*>(from), rows, columns, reinterpret_cast<uint32_t*>(to), first, width);
}

/// y += Σ scale · factors[i] · rows[i] over four rows of n elements.
[[gnu::always_inline]] inline void add_four_rows(double scale, const float* factors, const float* rows, int64_t n,
                                                 double* y) {
  const float *r0 = rows, *r1 = rows + n, *r2 = rows + 2 * n, *r3 = rows + 3 * n;
  const double f0 = scale * factors[0], f1 = scale * factors[1], f2 = scale * factors[2], f3 = scale * factors[3];
  for (int64_t i = 0; i < n; ++i) y[i] += f0 * r0[i] + f1 * r1[i] + f2 * r2[i] + f3 * r3[i];
}

#if defined(__x86_64__)
/// With wider vectors; bitwise equal, since there is no contraction to FMA.
__attribute__((target("avx2"))) void add_four_wide(double scale, const float* factors, const float* rows, int64_t n,
                                                   double* y) {
  add_four_rows(scale, factors, rows, n, y);
}
#endif

void add_four(double scale, const float* factors, const float* rows, int64_t n, double* y) {
#if defined(__x86_64__)
  static const bool wide = __builtin_cpu_supports("avx2");
  if (wide) return add_four_wide(scale, factors, rows, n, y);
#endif
  add_four_rows(scale, factors, rows, n, y);
}

/// Adds to the norms of a check, in four partial sums for vectorization.
void add_differences(const float* written, const double* exact, const float* base, int64_t n, RowCheck& found) {
  double rounding[4] = {}, change[4] = {};
  const auto add = [&](int64_t i, int64_t sum) {
    const double a = written[i] - exact[i], b = exact[i] - base[i];
    rounding[sum] += a * a;
    change[sum] += b * b;
  };
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    for (int64_t sum = 0; sum < 4; ++sum) add(i + sum, sum);
  }
  for (; i < n; ++i) add(i, 0);
  found.rounding += (rounding[0] + rounding[1]) + (rounding[2] + rounding[3]);
  found.change += (change[0] + change[1]) + (change[2] + change[3]);
}

template <class T>
T* grown(std::vector<T>& buffer, int64_t count) {
  if (static_cast<int64_t>(buffer.size()) < count) buffer.resize(static_cast<size_t>(count));
  return buffer.data();
}

}  // namespace

int64_t sampled_row(const std::string& name, int64_t group, int64_t rows) {
  const int64_t begin = group * kRowsPerSample;
  HONE_ASSERT(begin < rows, name);
  const auto number = static_cast<uint64_t>(group);
  const auto words = philox(mix_key(crc32c(name), kSampleUse),
                            {static_cast<uint32_t>(number), static_cast<uint32_t>(number >> 32), 0u, 0u});
  return begin + words[0] % std::min(kRowsPerSample, rows - begin);
}

MergedTensor::MergedTensor(SavedSlice slice, const Checkpoint& base, const PackedFormat* rounding)
    : announced_(std::move(slice.announced)),
      parameter_(slice.parameter),
      slice_(std::move(slice.slice)),
      order_(slice_.order, slice_.shape) {
  std::vector<std::string> missing;
  stored_ = StoredTensor::find(base, slice_, missing);
  HONE_ASSERT(stored_ && missing.empty(), slice_.name);
  rows_are_outputs_ = !stored_->order(slice_).transposed;
  turned_ = rows_are_outputs_ && order_.transposed;
  matrix_rows_ = rows_are_outputs_ ? order_.out : order_.in;
  columns_ = rows_are_outputs_ ? order_.in : order_.out;
  rows_ = columns_ > 0 ? slice_.shape.numel() / columns_ : 0;
  const bool plain = stored_->format() == StoredTensor::Format::kPlain;
  source_ = plain && stored_->dtype() == announced_.dtype ? Source::kCopied : Source::kConverted;
  if (parameter_->trainable()) {
    HONE_ASSERT(slice_.order == FileOrder::kSame && parameter_->value().dtype() == DType::kF32, announced_.name);
    source_ = Source::kReplaced;
    return;
  }
  if (rounding != nullptr && rows_ > 0) {
    rounding_ = rounding;
    source_ = Source::kMerged;
  }
  const Place first = rows_ > 0 ? place_of(0) : Place{};
  for (const auto& attached : parameter_->adapters()) {
    const AdapterPlace& adapted = attached->place();
    // A tensor of one projection of an expert is unaffected by the other projection's adapter.
    const int64_t end = adapted.out_begin + adapted.out_count;
    if (end <= first.out_begin || adapted.out_begin >= first.out_begin + order_.out) continue;
    source_ = Source::kMerged;
    if (attached->merges_rows()) {
      HONE_ASSERT(rows_are_outputs_, announced_.name);
      finishing_ = attached.get();
    }
    const LowRank* low_rank = attached->low_rank();
    if (low_rank == nullptr) continue;
    terms_.push_back({low_rank->a->value().whole().as<float>(), low_rank->b->value().whole().as<float>(),
                      low_rank->a->shape()[-2], adapted.out_begin, adapted.out_count, low_rank->factors.scaling});
  }
}

MergedTensor::MergedTensor(CarriedTensor carried)
    : announced_(std::move(carried.announced)), stored_(carried.stored), rows_(announced_.numel()) {
  source_ = stored_->format() == StoredTensor::Format::kPlain ? Source::kCopied : Source::kConverted;
}

MergedTensor::Place MergedTensor::place_of(int64_t matrix) const {
  const Shape& shape = parameter_->shape();
  if (shape.rank() < 2) return {};
  const int64_t out = shape[-2], in = shape[-1];
  if (parameter_->adapters().empty()) return {};
  HONE_ASSERT(order_.in == in && slice_.offset % in == 0, announced_.name);
  const int64_t row = slice_.offset / in + matrix * order_.out;
  HONE_ASSERT(row % out + order_.out <= out, announced_.name);
  return {row / out, row % out};
}

int64_t MergedTensor::output(const Place& place, int64_t file_output) const {
  if (!order_.interleaved) return place.out_begin + file_output;
  return place.out_begin + file_output / 2 + (file_output % 2 == 0 ? 0 : order_.out / 2);
}

void MergedTensor::prefetch(int64_t first_row, int64_t rows) const {
  if (source_ != Source::kReplaced) stored_->prefetch(first_row * columns_, rows * columns_);
}

/// Products for rows [begin, end) of a matrix. Outputs without an adapter get zeros.
std::vector<MergedTensor::Product> MergedTensor::products(RowScratch& scratch, int64_t matrix, int64_t begin,
                                                          int64_t end) const {
  const Place place = place_of(matrix);
  const int64_t in = order_.in;
  const int64_t first_output = rows_are_outputs_ ? begin : 0, outputs = rows_are_outputs_ ? end - begin : order_.out;
  std::vector<Product> products;
  if (scratch.factors.size() < terms_.size()) scratch.factors.resize(terms_.size());
  for (size_t t = 0; t < terms_.size(); ++t) {
    const Term& term = terms_[t];
    const float* a = term.a + place.expert * term.r * in;
    const float* b = term.b + place.expert * term.out_count * term.r;
    float* own = grown(scratch.factors[t], outputs * term.r);
    bool any = false;
    for (int64_t i = 0; i < outputs; ++i) {
      const int64_t out = output(place, first_output + i) - term.out_begin;
      const bool adapted = out >= 0 && out < term.out_count;
      if (adapted) {
        std::copy(b + out * term.r, b + (out + 1) * term.r, own + i * term.r);
      } else {
        std::fill(own + i * term.r, own + (i + 1) * term.r, 0.0f);
      }
      any |= adapted;
    }
    if (!any) continue;
    const MatrixView of_b{.data = own, .row_stride = term.r};
    const MatrixView of_a{.data = a, .row_stride = in};
    if (rows_are_outputs_) {
      products.push_back({of_b, of_a, term.r, term.scaling});
    } else {
      MatrixView rows = of_a;
      rows.data = a + begin;
      products.push_back({transposed(rows), transposed(of_b), term.r, term.scaling});
    }
  }
  return products;
}

void MergedTensor::read_floats(RowScratch& scratch, int64_t first_row, int64_t rows, float* floats) const {
  const int64_t count = rows * columns_;
  if (rounds()) {
    const int64_t matrix = first_row / matrix_rows_;
    round(scratch, matrix);
    const float* from = scratch.rounded.file.data() + (first_row - matrix * matrix_rows_) * columns_;
    std::copy(from, from + count, floats);
    return;
  }
  if (stored_->format() != StoredTensor::Format::kPlain || stored_->dtype() != DType::kBF16) {
    return stored_->read(scratch.read, first_row * columns_, count, DType::kF32, reinterpret_cast<std::byte*>(floats));
  }
  std::byte* bytes = grown(scratch.narrow, count * static_cast<int64_t>(sizeof(BFloat16)));
  stored_->read(scratch.read, first_row * columns_, count, DType::kBF16, bytes);
  widen(bytes, DType::kBF16, floats, count);
}

void MergedTensor::round(RowScratch& scratch, int64_t matrix) const {
  round_matrix(*rounding_, *parameter_, *stored_, stored_->order(slice_), matrix, scratch.read, scratch.rounded);
}

void MergedTensor::make_blocks(RowScratch& scratch, int64_t first_row, int64_t rows, std::byte* written) const {
  const auto element = size_of(announced_.dtype);
  const int64_t block = std::max<int64_t>(kBlock / columns_, 1);
  for (int64_t row = first_row, end = first_row + rows; row < end;) {
    const int64_t matrix = row / matrix_rows_, begin = row - matrix * matrix_rows_;
    const int64_t part = std::min(matrix_rows_, begin + end - row);  // the end of these rows in the matrix
    const std::vector<Product> of_matrix = products(scratch, matrix, begin, part);
    if (rounds()) {
      round(scratch, matrix);
      scratch.base_error += scratch.rounded.error;
    }
    for (int64_t at = begin; at < part; at += block) {
      const int64_t count = std::min(block, part - at);
      float* floats = grown(scratch.floats, block * columns_);
      read_floats(scratch, matrix * matrix_rows_ + at, count, floats);
      for (const Product& product : of_matrix) {
        MatrixView left = product.left;
        left.data = static_cast<const float*>(left.data) + (at - begin) * left.row_stride;
        gemm_serial({.m = count,
                     .n = columns_,
                     .k = product.r,
                     .a = left,
                     .b = product.right,
                     .c = floats,
                     .ldc = columns_,
                     .alpha = product.scaling,
                     .beta = 1.0f});
      }
      for (int64_t i = 0; finishing_ != nullptr && i < count; ++i) {
        finishing_->merge_row(std::span<float>(floats + i * columns_, static_cast<size_t>(columns_)),
                              output(place_of(matrix), at + i) - finishing_->place().out_begin);
      }
      const int64_t place = (matrix * matrix_rows_ + at - first_row) * columns_;
      std::byte* narrowed = turned_ ? grown(scratch.narrow, count * columns_ * static_cast<int64_t>(element))
                                    : written + static_cast<size_t>(place) * element;
      narrow(floats, announced_.dtype, narrowed, count * columns_);
      if (source_ == Source::kMerged) expect_finite(narrowed, count * columns_);
      if (!turned_) continue;
      const int64_t to = (matrix * matrix_rows_ - first_row) * columns_;
      turn(narrowed, element, count, columns_, written + static_cast<size_t>(to) * element, at, matrix_rows_);
    }
    row += part - begin;
  }
}

void MergedTensor::expect_finite(const std::byte* written, int64_t count) const {
  if (all_finite(announced_.dtype, written, count)) return;
  throw Error(ExitCode::kCheckFailed,
              fmt::format("'{}' has numbers that are not finite after merging the adapter", name()), "",
              "nothing was written; look at the adapter's and the base's values of this tensor");
}

void MergedTensor::make(RowScratch& scratch, int64_t first_row, int64_t rows, std::byte* written) const {
  const int64_t first = first_row * columns_, count = rows * columns_;
  switch (source_) {
    case Source::kCopied:
      return stored_->read(scratch.read, first, count, announced_.dtype, written);
    case Source::kReplaced:
      narrow(parameter_->value().whole().as<float>() + slice_.offset + first, announced_.dtype, written, count);
      return expect_finite(written, count);
    case Source::kConverted:
      if (!turned_) return stored_->read(scratch.read, first, count, announced_.dtype, written);
      [[fallthrough]];
    case Source::kMerged:
      return make_blocks(scratch, first_row, rows, written);
  }
}

/// Computes scratch.largest: the maximum of each row of A of a matrix, for each term.
void MergedTensor::measure_rows(RowScratch& scratch, int64_t matrix) const {
  const int64_t expert = place_of(matrix).expert, in = order_.in;
  scratch.largest.resize(terms_.size());
  for (size_t t = 0; t < terms_.size(); ++t) {
    const Term& term = terms_[t];
    scratch.largest[t].assign(static_cast<size_t>(term.r), 0.0f);
    for (int64_t rho = 0; rho < term.r; ++rho) {
      const float* row = term.a + (expert * term.r + rho) * in;
      for (int64_t c = 0; c < in; ++c) {
        scratch.largest[t][static_cast<size_t>(rho)] =
            std::max(scratch.largest[t][static_cast<size_t>(rho)], std::abs(row[c]));
      }
    }
  }
}

/// Computes scratch.exact, the row in float64, and scratch.magnitude, an upper bound of |W| + Σ |scale b a|.
void MergedTensor::expect_row(RowScratch& scratch, int64_t row, const float* base) const {
  const int64_t matrix = row / matrix_rows_, in_matrix = row % matrix_rows_, in = order_.in;
  const Place place = place_of(matrix);
  double* const exact = grown(scratch.exact, columns_);
  double* const magnitude = grown(scratch.magnitude, columns_);
  double of_row = 0;
  for (int64_t c = 0; c < columns_; ++c) {
    exact[c] = base[c];
    magnitude[c] = std::abs(exact[c]);
  }
  for (size_t t = 0; t < terms_.size(); ++t) {
    const Term& term = terms_[t];
    const float* a = term.a + place.expert * term.r * in;
    const float* b = term.b + place.expert * term.out_count * term.r;
    const double scaling = term.scaling;
    if (rows_are_outputs_) {
      const int64_t out = output(place, in_matrix) - term.out_begin;
      if (out < 0 || out >= term.out_count) continue;
      b += out * term.r;
      for (int64_t rho = 0; rho < term.r; ++rho) {
        of_row += std::abs(scaling * b[rho]) * scratch.largest[t][static_cast<size_t>(rho)];
      }
      int64_t rho = 0;
      for (; rho + 4 <= term.r; rho += 4) {
        add_four(scaling, b + rho, a + rho * in, in, exact);
      }
      for (; rho < term.r; ++rho) {
        const double factor = scaling * b[rho];
        for (int64_t c = 0; c < in; ++c) exact[c] += factor * a[rho * in + c];
      }
      continue;
    }
    for (int64_t c = 0; c < columns_; ++c) {
      const int64_t out = output(place, c) - term.out_begin;
      if (out < 0 || out >= term.out_count) continue;
      for (int64_t rho = 0; rho < term.r; ++rho) {
        const double product = scaling * b[out * term.r + rho] * a[rho * in + in_matrix];
        exact[c] += product;
        magnitude[c] += std::abs(product);
      }
    }
  }
  for (int64_t c = 0; c < columns_; ++c) magnitude[c] += of_row;
  if (finishing_ == nullptr) return;
  const auto count = static_cast<size_t>(columns_);
  finishing_->merge_row(std::span(exact, count), std::span(magnitude, count),
                        output(place, in_matrix) - finishing_->place().out_begin);
}

RowCheck MergedTensor::check(RowScratch& scratch, int64_t first_row, int64_t rows, const std::byte* written) const {
  RowCheck found;
  if (source_ != Source::kMerged || rows == 0) return found;
  const DType dtype = announced_.dtype;
  const size_t element = size_of(dtype);
  int64_t ranks = 0;
  for (const Term& term : terms_) ranks += term.r + 1;
  const double roundings = static_cast<double>(2 * ranks + 4) * 0x1p-24;
  int64_t measured = -1;
  for (int64_t group = first_row / kRowsPerSample; group <= (first_row + rows - 1) / kRowsPerSample; ++group) {
    const int64_t row = sampled_row(name(), group, rows_);
    if (row < first_row || row >= first_row + rows) continue;
    float* base = grown(scratch.floats, 3 * columns_);
    float *own = base + columns_, *single = own + columns_;
    read_floats(scratch, row, 1, base);
    if (turned_) {
      const int64_t matrix = row / matrix_rows_ * matrix_rows_;
      const std::byte* from = written + static_cast<size_t>((matrix - first_row) * columns_ + row - matrix) * element;
      for (int64_t c = 0; c < columns_; ++c) {
        widen(from + static_cast<size_t>(c * matrix_rows_) * element, dtype, own + c, 1);
      }
    } else {
      widen(written + static_cast<size_t>((row - first_row) * columns_) * element, dtype, own, columns_);
    }
    if (const int64_t matrix = row / matrix_rows_; rows_are_outputs_ && matrix != measured) {
      measure_rows(scratch, matrix);
      measured = matrix;
    }
    expect_row(scratch, row, base);
    const double* exact = scratch.exact.data();
    add_differences(own, exact, base, columns_, found);
    for (int64_t c = 0; c < columns_; ++c) single[c] = static_cast<float>(exact[c]);
    std::byte* expected = grown(scratch.narrow, columns_ * static_cast<int64_t>(element));
    narrow(single, dtype, expected, columns_);
    widen(expected, dtype, single, columns_);
    for (int64_t c = 0; c < columns_; ++c) {
      if (own[c] == single[c]) continue;
      const double slack = roundings * scratch.magnitude[static_cast<size_t>(c)] + 0x1p-140;
      if (own[c] >= rounded(exact[c] - slack, dtype) && own[c] <= rounded(exact[c] + slack, dtype)) continue;
      throw Error(
          ExitCode::kCheckFailed,
          fmt::format("'{}', row {} of {}, number {}: {} was written, W + scale · B A is {}", name(), row, rows_, c,
                      own[c], exact[c]),
          "",
          "the output was removed; an error above rounding is a fault of the program or of memory: please report it");
    }
    ++found.rows;
  }
  return found;
}

}  // namespace hone
