#include "weights/stored_tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "core/base/error.h"
#include "formats/packed_weights.h"
#include "kernels/cpu/row_math/row_math.h"
#include "weights/bitsandbytes_matrix.h"
#include "weights/compressed_matrix.h"
#include "weights/dequantise.h"
#include "weights/grown_rows.h"
#include "weights/shard_writer.h"
#include "weights/tensor_dims.h"

namespace hone {

namespace {

int64_t blocks(int64_t n, int64_t size) { return (n + size - 1) / size; }

void expect_shape(const Checkpoint::Tensor& tensor, const std::vector<int64_t>& expected, const std::string& source,
                  const std::string& fix) {
  if (tensor.entry->shape == expected) return;
  throw UserError(fmt::format("'{}' has the shape {}, {} asks for [{}]", tensor.entry->name, tensor.entry->shape_text(),
                              source, fmt::join(expected, ", ")),
                  tensor.file->path().string(), fix);
}

void expect_dtype(const Checkpoint::Tensor& tensor, bool holds, const char* expected) {
  if (holds) return;
  throw UserError(fmt::format("'{}' is {}, not {}", tensor.entry->name, tensor.entry->dtype_name(), expected),
                  tensor.file->path().string(), "download the checkpoint again, or use its bfloat16 version");
}

bool is_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF64;
}

constexpr const char* kOtherConfig = "use the config.json that belongs to these weights";

const Quantization& quantization_of(const Checkpoint& checkpoint, const Checkpoint::Tensor& tensor,
                                    std::initializer_list<QuantMethod> methods) {
  const std::optional<Quantization>& quantization = checkpoint.quantization();
  if (quantization && std::ranges::count(methods, quantization->method) > 0) return *quantization;
  throw UserError(
      fmt::format("'{}' is quantised, but config.json has no quantization_config that says how", tensor.entry->name),
      tensor.file->path().string(), kOtherConfig);
}

/// The matrix of this name, if the checkpoint has its codes in a format of weights/coded_matrix.h; else null.
std::shared_ptr<const CodedMatrix> coded_matrix(const Checkpoint& checkpoint, const std::string& name,
                                                std::vector<std::string>& missing) {
  if (CompressedMatrix::has_codes_of(checkpoint, name)) {
    return std::make_shared<CompressedMatrix>(checkpoint, name, missing);
  }
  const Checkpoint::Tensor* const found = checkpoint.find(name);
  if (found == nullptr || !BitsandbytesMatrix::has_codes_of(*found->entry)) return nullptr;
  quantization_of(checkpoint, *found, {QuantMethod::kBitsandbytes});
  return std::make_shared<BitsandbytesMatrix>(checkpoint, *found, missing);
}

std::vector<std::byte>& resized(std::vector<std::byte>& buffer, int64_t bytes) {
  if (static_cast<int64_t>(buffer.size()) < bytes) buffer.resize(static_cast<size_t>(bytes));
  return buffer;
}

}  // namespace

std::optional<StoredTensor> StoredTensor::find(const Checkpoint& checkpoint, const FileTensor& tensor,
                                               std::vector<std::string>& missing) {
  if (const auto matrix = coded_matrix(checkpoint, tensor.name, missing)) {
    StoredTensor stored = coded(matrix);
    if (missing.empty()) stored.expect_matrix(dims_of(file_shape(tensor.order, tensor.shape)));
    return stored;
  }
  if (const Checkpoint::Tensor* found = checkpoint.find(tensor.name)) {
    StoredTensor plain;
    plain.values_ = *found;
    plain.grown_ = checkpoint.grown(tensor.name);
    if (plain.grown_ && plain.grown_->shape() == dims_of(file_shape(tensor.order, tensor.shape))) return plain;
    expect_shape(*found, dims_of(file_shape(tensor.order, tensor.shape)), "config.json", kOtherConfig);
    if (found->entry->float8_e4m3) return block_fp8(checkpoint, tensor.name, missing);
    return plain;
  }
  if (checkpoint.find(tensor.name + "_blocks") || checkpoint.find(tensor.name + "_scales")) {
    return mxfp4(checkpoint, tensor, missing);
  }
  return std::nullopt;
}

StoredTensor StoredTensor::carried(const Checkpoint& checkpoint, const std::string& name) {
  const Checkpoint::Tensor& found = *checkpoint.find(name);
  std::vector<std::string> missing;
  StoredTensor stored;
  stored.values_ = found;
  const bool is_scale = name.ends_with("_scale");  // NVFP4's
  if (found.entry->float8_e4m3 && !is_scale) stored = block_fp8(checkpoint, name, missing);
  const std::optional<Quantization>& quantization = checkpoint.quantization();
  const bool bitsandbytes = quantization && quantization->method == QuantMethod::kBitsandbytes;
  if (const std::optional<std::string> plain = CompressedMatrix::name_of_codes(checkpoint, name)) {
    stored = coded(coded_matrix(checkpoint, *plain, missing));
  } else if (bitsandbytes && name.ends_with(".weight") && BitsandbytesMatrix::has_codes_of(*found.entry)) {
    stored = coded(coded_matrix(checkpoint, name, missing));
  }
  stored.carried_ = true;
  if (missing.empty()) return stored;
  throw UserError(fmt::format("'{}' is quantised and its scales '{}' are missing", name, missing.front()),
                  found.file->path().string(), "download the checkpoint again");
}

StoredTensor StoredTensor::block_fp8(const Checkpoint& checkpoint, const std::string& name,
                                     std::vector<std::string>& missing) {
  StoredTensor stored;
  stored.format_ = Format::kBlockFp8;
  stored.values_ = *checkpoint.find(name);
  Quantization& quantization = stored.quantization_;
  quantization = quantization_of(checkpoint, stored.values_,
                                 {QuantMethod::kBlockFp8, QuantMethod::kCompressed, QuantMethod::kModelopt});
  const std::string scale_name = name + (quantization.method == QuantMethod::kBlockFp8 ? "_scale_inv" : "_scale");
  const Checkpoint::Tensor* scales = checkpoint.find(scale_name);
  if (scales == nullptr) {
    missing.push_back(scale_name);
    return stored;
  }
  stored.scales_ = *scales;
  if (quantization.method != QuantMethod::kBlockFp8) {  // one of three forms, which the shape of the scales tells
    const bool of_rows =
        stored.values_.entry->shape.size() == 2 && scales->entry->numel() == stored.values_.entry->shape[0];
    if (scales->entry->numel() == 1) {
      quantization.block_rows = quantization.block_columns = kWholeMatrix;
    } else if (of_rows && scales->entry->shape.back() == 1) {
      quantization.block_rows = 1;
      quantization.block_columns = kWholeMatrix;
    }
  }
  std::vector<int64_t> expected = stored.values_.entry->shape;
  const size_t rank = expected.size();
  if (rank < 2) {
    throw UserError(fmt::format("'{}' is quantised and no matrix", name), stored.values_.file->path().string());
  }
  expected[rank - 2] = blocks(expected[rank - 2], stored.quantization_.block_rows);
  expected[rank - 1] = blocks(expected[rank - 1], stored.quantization_.block_columns);
  if (stored.quantization_.block_rows == kWholeMatrix) {  // a matrix's only scale may be a scalar
    const int64_t matrices = std::accumulate(expected.begin(), expected.end(), int64_t{1}, std::multiplies<>());
    if (scales->entry->numel() != matrices) expect_shape(*scales, expected, "weight_block_size null", kOtherConfig);
  } else {
    expect_shape(
        *scales, expected,
        fmt::format("weight_block_size [{}, {}]", stored.quantization_.block_rows, stored.quantization_.block_columns),
        kOtherConfig);
  }
  expect_dtype(*scales, is_float(scales->entry->dtype), "floating point");
  return stored;
}

StoredTensor StoredTensor::coded(std::shared_ptr<const CodedMatrix> matrix) {
  StoredTensor stored;
  stored.format_ = Format::kCoded;
  stored.values_ = matrix->codes();
  stored.coded_ = std::move(matrix);
  return stored;
}

void StoredTensor::expect_matrix(const std::vector<int64_t>& expected) const {
  if (coded_->shape() == expected) return;
  throw UserError(fmt::format("'{}' is a quantised matrix of [{}], config.json asks for [{}]", values_.entry->name,
                              fmt::join(coded_->shape(), ", "), fmt::join(expected, ", ")),
                  values_.file->path().string(), kOtherConfig);
}

std::vector<int64_t> StoredTensor::shape() const {
  HONE_ASSERT(format_ != Format::kMxfp4);  // its codes have the shape of another order
  if (grown_) return grown_->shape();
  return coded_ ? coded_->shape() : values_.entry->shape;
}

StoredTensor StoredTensor::mxfp4(const Checkpoint& checkpoint, const FileTensor& tensor,
                                 std::vector<std::string>& missing) {
  StoredTensor stored;
  stored.format_ = Format::kMxfp4;
  const Checkpoint::Tensor* codes = checkpoint.find(tensor.name + "_blocks");
  const Checkpoint::Tensor* scales = checkpoint.find(tensor.name + "_scales");
  stored.quantization_ = quantization_of(checkpoint, codes ? *codes : *scales, {QuantMethod::kMxfp4});
  std::vector<int64_t> expected = dims_of(tensor.shape);
  if (expected.empty() || expected.back() % kMxfp4Block != 0) {
    throw UserError(fmt::format("'{}' is quantised in blocks of {}, and config.json gives it the shape {}", tensor.name,
                                kMxfp4Block, tensor.shape.to_string()),
                    checkpoint.directory().string(), kOtherConfig);
  }
  expected.back() /= kMxfp4Block;
  if (scales) {
    expect_dtype(*scales, scales->entry->dtype == DType::kU8 && !scales->entry->float8_e4m3, "uint8");
    expect_shape(*scales, expected, "config.json", kOtherConfig);
    stored.scales_ = *scales;
  } else {
    missing.push_back(tensor.name + "_scales");
  }
  expected.push_back(kMxfp4Block / 2);
  if (codes) {
    expect_dtype(*codes, codes->entry->dtype == DType::kU8 && !codes->entry->float8_e4m3, "uint8");
    expect_shape(*codes, expected, "config.json", kOtherConfig);
    stored.values_ = *codes;
  } else {
    missing.push_back(tensor.name + "_blocks");
  }
  return stored;
}

std::vector<std::string> StoredTensor::names() const {
  if (coded_) return coded_->names();
  std::vector<std::string> names;
  for (const Checkpoint::Tensor& tensor : {values_, scales_}) {
    if (tensor.entry) names.push_back(tensor.entry->name);
  }
  return names;
}

MatrixOrder StoredTensor::order(const FileTensor& tensor) const {
  MatrixOrder order(tensor.order, tensor.shape);
  if (format_ == Format::kMxfp4) order.transposed = false;
  return order;
}

int64_t StoredTensor::bytes_of(int64_t count) const {
  if (format_ == Format::kMxfp4) return count / 2;
  if (coded_) return coded_->bytes_of(count);
  return count * static_cast<int64_t>(size_of(values_.entry->dtype));
}

void StoredTensor::prefetch(int64_t first, int64_t count) const {
  if (grown_) {
    const int64_t own = grown_->own_elements();
    count = std::min(count, std::max<int64_t>(own - first, 0));
    first = std::min(first, own);
  }
  values_.file->prefetch(*values_.entry, static_cast<uint64_t>(bytes_of(first)),
                         static_cast<uint64_t>(bytes_of(count)));
}

void StoredTensor::refuse_number(int64_t element, float number) const {
  throw UserError(
      fmt::format("'{}' has a number that is not finite: element {} is {}", names().front(), element, number),
      values_.file->path().string(),
      "download this file again; if it is the same there, the model was damaged before it was published");
}

void StoredTensor::read(ReadScratch& scratch, int64_t first, int64_t count, DType dtype, std::byte* destination) const {
  read_values(scratch, first, count, dtype, destination);
  if (carried_ || all_finite(dtype, destination, count)) return;
  const auto refuse_first = [&](auto element) {
    const auto* numbers = reinterpret_cast<const decltype(element)*>(destination);
    for (int64_t i = 0; i < count; ++i) {
      if (const auto number = static_cast<float>(numbers[i]); !std::isfinite(number)) refuse_number(first + i, number);
    }
  };
  dtype == DType::kF16 ? refuse_first(Float16{}) : dispatch_float(dtype, refuse_first);
}

void StoredTensor::read_values(ReadScratch& scratch, int64_t first, int64_t count, DType dtype,
                               std::byte* destination) const {
  switch (format_) {
    case Format::kPlain:
      return read_plain(scratch, first, count, dtype, destination);
    case Format::kBlockFp8:
      return read_block_fp8(scratch, first, count, dtype, destination);
    case Format::kMxfp4:
      return read_mxfp4(scratch, first, count, dtype, destination);
    case Format::kCoded:
      return coded_->read(scratch, first, count, dtype, destination);
  }
}

const PackedFormat* StoredTensor::packed_format() const {
  switch (format_) {
    case Format::kPlain:
      return nullptr;
    case Format::kBlockFp8:
      return has_scales_of_rows() ? &fp8_rows_format() : &fp8_format();
    case Format::kMxfp4:
      return &mxfp4_format();
    case Format::kCoded:
      return coded_->packed_format();
  }
  return nullptr;
}

bool StoredTensor::has_chunks(const PackedLayout& layout) const {
  if (coded_) {
    const PackedFormat* format = coded_->packed_format();
    const std::vector<int64_t> matrix = {layout.rows, layout.columns};
    return coded_->has_chunks() && coded_->shape() == matrix &&
           format->layout(layout.rows, layout.columns).code == layout.code;
  }
  if (format_ != Format::kBlockFp8) return false;
  if (layout.code == PackedCode::kFp8Rows) return has_scales_of_rows();
  return layout.code == PackedCode::kFp8 && quantization_.block_rows == kFp8Block &&
         quantization_.block_columns == kFp8Block;
}

void StoredTensor::read_chunk(const PackedLayout& layout, int64_t matrix, std::byte* chunk) const {
  HONE_ASSERT(has_chunks(layout));
  if (coded_) return coded_->read_chunk(layout, chunk);
  const auto elements = static_cast<uint64_t>(layout.elements());
  values_.file->read(*values_.entry, static_cast<uint64_t>(matrix) * elements, chunk, elements);
  const int64_t scales = blocks(layout.rows, quantization_.block_rows) * layout.scale_columns;
  auto* floats = reinterpret_cast<float*>(chunk + layout.scales);
  scales_.file->read_floats(*scales_.entry, matrix * scales, floats, scales);
  expect_finite(scales_, floats, scales);
  if (quantization_.block_rows == kWholeMatrix) std::fill_n(floats, layout.rows, floats[0]);
}

void StoredTensor::read_plain(ReadScratch& scratch, int64_t first, int64_t count, DType dtype,
                              std::byte* destination) const {
  const SafetensorsEntry& entry = *values_.entry;
  if (grown_ && first + count > grown_->own_elements()) {
    const int64_t own = std::max<int64_t>(grown_->own_elements() - first, 0);
    grown_->write(std::max<int64_t>(first - grown_->own_elements(), 0), count - own, dtype,
                  destination + static_cast<size_t>(own) * size_of(dtype));
    count = own;
    if (count == 0) return;
  }
  if (entry.dtype == dtype) {
    const size_t element = size_of(dtype);
    return values_.file->read(entry, static_cast<uint64_t>(first) * element, destination,
                              static_cast<uint64_t>(count) * element);
  }
  if (dtype == DType::kF32) {
    return values_.file->read_floats(entry, first, reinterpret_cast<float*>(destination), count);
  }
  HONE_ASSERT(dtype == DType::kBF16);
  scratch.values.resize(static_cast<size_t>(count));
  values_.file->read_floats(entry, first, scratch.values.data(), count);
  row_math().narrow(scratch.values.data(), reinterpret_cast<BFloat16*>(destination), count);
}

void StoredTensor::read_block_fp8(ReadScratch& scratch, int64_t first, int64_t count, DType dtype,
                                  std::byte* destination) const {
  if (count == 0) return;
  const std::vector<int64_t>& shape = values_.entry->shape;
  const int64_t rows = shape[shape.size() - 2], columns = shape.back();
  const int64_t block_rows = quantization_.block_rows, block_columns = quantization_.block_columns;
  const int64_t scale_columns = blocks(columns, block_columns);
  // Row r of all matrices, one below another, has its scales in row scale_row(r) of theirs.
  const auto scale_row = [&](int64_t r) { return r / rows * blocks(rows, block_rows) + r % rows / block_rows; };
  const int64_t first_scale_row = scale_row(first / columns);
  const int64_t scale_count = (scale_row((first + count - 1) / columns) + 1 - first_scale_row) * scale_columns;
  scratch.scales.resize(static_cast<size_t>(scale_count));
  scales_.file->read_floats(*scales_.entry, first_scale_row * scale_columns, scratch.scales.data(), scale_count);
  auto* codes = reinterpret_cast<uint8_t*>(resized(scratch.codes, count).data());
  values_.file->read(*values_.entry, static_cast<uint64_t>(first), codes, static_cast<uint64_t>(count));
  const RowMath& math = row_math();
  dequantise(count, dtype, destination, [&](int64_t begin, int64_t n, float* floats) {
    for (int64_t i = 0; i < n;) {
      const int64_t row = (first + begin + i) / columns;
      int64_t column = (first + begin + i) % columns;
      const float* row_scales = scratch.scales.data() + (scale_row(row) - first_scale_row) * scale_columns;
      for (const int64_t row_end = std::min(n, i + columns - column); i < row_end;) {
        const int64_t block = column / block_columns;
        const int64_t run = std::min((block + 1) * block_columns - column, row_end - i);
        math.scale_e4m3(row_scales[block], codes + begin + i, floats + i, run);
        column += run;
        i += run;
      }
    }
  });
}

void StoredTensor::read_mxfp4(ReadScratch& scratch, int64_t first, int64_t count, DType dtype,
                              std::byte* destination) const {
  HONE_ASSERT(first % kMxfp4Block == 0 && count % kMxfp4Block == 0);
  auto* codes = reinterpret_cast<uint8_t*>(resized(scratch.codes, count / 2).data());
  auto* scales = reinterpret_cast<uint8_t*>(resized(scratch.scale_codes, count / kMxfp4Block).data());
  values_.file->read(*values_.entry, static_cast<uint64_t>(first / 2), codes, static_cast<uint64_t>(count / 2));
  scales_.file->read(*scales_.entry, static_cast<uint64_t>(first / kMxfp4Block), scales,
                     static_cast<uint64_t>(count / kMxfp4Block));
  const RowMath& math = row_math();
  dequantise(count, dtype, destination, [&](int64_t begin, int64_t n, float* floats) {
    math.scale_mxfp4(scales + begin / kMxfp4Block, codes + begin / 2, floats, n);
  });
}

}  // namespace hone
