#include "weights/compressed_matrix.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/base/error.h"
#include "weights/dequantise.h"

namespace hone {

namespace {

constexpr std::string_view kPacked = "_packed";
constexpr int64_t kMostZeroBytes = int64_t{1} << 30;

bool is_scale(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16; }

std::optional<QuantMethod> method_of(const Checkpoint& checkpoint) {
  const std::optional<Quantization>& quantization = checkpoint.quantization();
  return quantization ? std::optional(quantization->method) : std::nullopt;
}

/// Code `at` of a row or column of words.
uint32_t code_in(const uint32_t* words, int64_t stride, int64_t at, int bits) {
  const int64_t bit = at * bits;
  return words[bit / 32 * stride] >> (bit % 32) & ((1u << bits) - 1u);
}

}  // namespace

std::optional<std::string> CompressedMatrix::name_of_codes(const Checkpoint& checkpoint, const std::string& tensor) {
  const std::optional<QuantMethod> method = method_of(checkpoint);
  if (method == QuantMethod::kCompressed && tensor.ends_with(kPacked)) {
    return tensor.substr(0, tensor.size() - kPacked.size());
  }
  const Checkpoint::Tensor* const found = checkpoint.find(tensor);
  if (found == nullptr || !checkpoint.find(tensor + "_scale")) return std::nullopt;
  const bool codes = method == QuantMethod::kCompressed
                         ? found->entry->dtype == DType::kI8
                         : method == QuantMethod::kModelopt && is_unsigned(*found->entry);
  return codes ? std::optional(tensor) : std::nullopt;
}

bool CompressedMatrix::has_codes_of(const Checkpoint& checkpoint, const std::string& name) {
  const std::string packed = name + std::string(kPacked);
  return (checkpoint.find(packed) && name_of_codes(checkpoint, packed)) || name_of_codes(checkpoint, name);
}

CompressedMatrix::CompressedMatrix(const Checkpoint& checkpoint, const std::string& name,
                                   std::vector<std::string>& missing)
    : name_(name) {
  const Checkpoint::Tensor* const packed = checkpoint.find(name + std::string(kPacked));
  codes_ = packed ? *packed : *checkpoint.find(name);
  const SafetensorsEntry& entry = *codes_.entry;
  if (entry.shape.size() != 2) contradict("its codes are not a matrix");
  if (find(checkpoint, name + "_g_idx", nullptr)) {
    throw UserError(
        fmt::format("'{}' has its columns in the order of their activations (actorder), which is not read", entry.name),
        codes_.file->path().string(), "use the bfloat16 checkpoint of the model, or one without actorder");
  }
  if (entry.dtype == DType::kI32) {
    find_words(checkpoint, missing);
    if (shape_.empty()) return;
  } else if (entry.dtype == DType::kI8) {
    bits_ = 8;
    shape_ = entry.shape;
    for (int code = 0; code < 256; ++code) values_[static_cast<size_t>(code)] = static_cast<float>(int8_t(code));
  } else if (is_unsigned(entry)) {
    shape_ = {entry.shape[0], 2 * entry.shape[1]};
    std::copy(kE2m1Values.begin(), kE2m1Values.end(), values_.begin());
  } else {
    contradict(fmt::format("its codes are {}", entry.dtype_name()));
  }
  find_scales(checkpoint, missing);
  if (scales_.entry == nullptr) return;
  find_zeros(checkpoint);
  packed_ = same_format();
}

void CompressedMatrix::contradict(const std::string& what) const {
  throw UserError(fmt::format("'{}' cannot be read: {}", codes_.entry->name, what), codes_.file->path().string(),
                  "download the checkpoint again, or use its bfloat16 version");
}

const Checkpoint::Tensor* CompressedMatrix::find(const Checkpoint& checkpoint, const std::string& name,
                                                 std::vector<std::string>* missing) {
  const Checkpoint::Tensor* const found = checkpoint.find(name);
  if (found) {
    other_names_.push_back(name);
  } else if (missing) {
    missing->push_back(name);
  }
  return found;
}

void CompressedMatrix::find_words(const Checkpoint& checkpoint, std::vector<std::string>& missing) {
  const std::string shape_name = name_ + "_shape";
  const Checkpoint::Tensor* const shape = find(checkpoint, shape_name, &missing);
  if (shape == nullptr) return;
  if (shape->entry->numel() != 2) contradict("its shape is not two numbers");
  const std::vector<int64_t> sizes = shape->file->read_integers(shape_name);
  const std::vector<int64_t>& words = codes_.entry->shape;
  const int64_t columns = sizes[1];
  if (columns <= 0 || columns > INT32_MAX || sizes[0] != words[0]) {
    contradict(fmt::format("its shape is [{}] and its codes have {} rows", fmt::join(sizes, ", "), words[0]));
  }
  const auto has_bits = [&](int64_t bits) { return words[1] == ceil_div(columns * bits, 32); };
  if (has_bits(4) == has_bits(8)) {
    contradict(fmt::format("{} words a row for {} columns are not codes of 4 or 8 bits", words[1], columns));
  }
  bits_ = has_bits(4) ? 4 : 8;
  const int codes = 1 << bits_;
  for (int code = 0; code < codes; ++code) values_[static_cast<size_t>(code)] = static_cast<float>(code - codes / 2);
  shape_ = sizes;
}

void CompressedMatrix::find_scales(const Checkpoint& checkpoint, std::vector<std::string>& missing) {
  const Checkpoint::Tensor* const scales = find(checkpoint, name_ + "_scale", &missing);
  if (scales == nullptr) return;
  const SafetensorsEntry& entry = *scales->entry;
  const int64_t rows = shape_[0], columns = shape_[1];
  const bool floats = codes_.entry->dtype != DType::kU8;
  one_scale_ = floats && entry.numel() == 1;
  const int64_t groups = one_scale_ ? 1 : entry.shape.size() == 2 && entry.shape[0] == rows ? entry.shape[1] : 0;
  if (groups == 0 || columns % groups != 0) {
    contradict(fmt::format("its scales have the shape {} for [{}, {}]", entry.shape_text(), rows, columns));
  }
  group_ = columns / groups;
  if (floats) {
    if (!is_scale(entry.dtype)) contradict(fmt::format("its scales are {}", entry.dtype_name()));
  } else if (entry.float8_e4m3) {
    const bool divides = codes_.entry->name != name_;
    const std::string factor_name = name_ + (divides ? "_global_scale" : "_scale_2");
    const Checkpoint::Tensor* const factor = find(checkpoint, factor_name, &missing);
    if (factor == nullptr) return;
    if (factor->entry->dtype != DType::kF32 || factor->entry->numel() != 1) {
      contradict(fmt::format("'{}' is not one float32 number", factor_name));
    }
    factor->file->read_floats(*factor->entry, 0, &scale_factor_, 1);
    if (divides) scale_factor_ = 1.0f / scale_factor_;
    if (!std::isfinite(scale_factor_) || scale_factor_ == 0.0f) {
      contradict(fmt::format("'{}' is not a finite factor", factor_name));
    }
  } else if (!is_unsigned(entry) || group_ != kMxfp4Block) {
    contradict(fmt::format("its scales are {} for {} columns each", entry.dtype_name(), group_));
  }
  scales_ = *scales;
}

void CompressedMatrix::find_zeros(const Checkpoint& checkpoint) {
  const Checkpoint::Tensor* const zeros = find(checkpoint, name_ + "_zero_point", nullptr);
  if (zeros == nullptr) return;
  const SafetensorsEntry& entry = *zeros->entry;
  const bool words = entry.dtype == DType::kI32;
  const std::vector<int64_t> expected = {words ? ceil_div(shape_[0] * bits_, 32) : shape_[0], groups()};
  if (one_scale_ || (!words && entry.dtype != DType::kI8) || entry.shape != expected ||
      static_cast<int64_t>(entry.bytes) > kMostZeroBytes) {
    contradict(fmt::format("its zero points are {} {}", entry.dtype_name(), entry.shape_text()));
  }
  std::vector<uint32_t> packed(static_cast<size_t>(ceil_div(static_cast<int64_t>(entry.bytes), 4)));
  zeros->file->read(entry, 0, packed.data(), entry.bytes);
  const auto* bytes = reinterpret_cast<const int8_t*>(packed.data());
  zeros_.resize(static_cast<size_t>(shape_[0] * groups()));
  bool any = false;
  for (int64_t row = 0; row < shape_[0]; ++row) {
    for (int64_t group = 0; group < groups(); ++group) {
      const int64_t at = row * groups() + group;
      const float zero =
          words ? static_cast<float>(static_cast<int>(code_in(packed.data() + group, groups(), row, bits_)) -
                                     (1 << (bits_ - 1)))
                : static_cast<float>(bytes[at]);
      zeros_[static_cast<size_t>(at)] = zero;
      any = any || zero != 0.0f;
    }
  }
  if (!any) zeros_.clear();  // symmetric
}

std::vector<std::string> CompressedMatrix::names() const {
  std::vector<std::string> names = {codes_.entry->name};
  names.insert(names.end(), other_names_.begin(), other_names_.end());
  return names;
}

void CompressedMatrix::scales_of_rows(ReadScratch& scratch, int64_t first, int64_t count) const {
  const int64_t from = one_scale_ ? 0 : first * groups(), scales = one_scale_ ? 1 : count * groups();
  scratch.scales.resize(static_cast<size_t>(scales));
  if (codes_.entry->dtype != DType::kU8) {
    return scales_.file->read_floats(*scales_.entry, from, scratch.scales.data(), scales);
  }
  scratch.scale_codes.resize(static_cast<size_t>(scales));
  scales_.file->read(*scales_.entry, static_cast<uint64_t>(from), scratch.scale_codes.data(),
                     static_cast<uint64_t>(scales));
  const bool e4m3 = scales_.entry->float8_e4m3;
  for (size_t i = 0; i < scratch.scales.size(); ++i) {
    const auto code = static_cast<uint32_t>(scratch.scale_codes[i]);
    scratch.scales[i] = e4m3 ? e4m3_value(code) * scale_factor_ : e8m0_value(code);
  }
}

void CompressedMatrix::read(ReadScratch& scratch, int64_t first, int64_t count, DType dtype,
                            std::byte* destination) const {
  if (count == 0) return;
  const int64_t columns = shape_[1];
  const int64_t first_row = first / columns, rows = (first + count - 1) / columns - first_row + 1;
  const int64_t bytes = rows * row_bytes();
  if (static_cast<int64_t>(scratch.codes.size()) < bytes) scratch.codes.resize(static_cast<size_t>(bytes));
  codes_.file->read(*codes_.entry, static_cast<uint64_t>(first_row * row_bytes()), scratch.codes.data(),
                    static_cast<uint64_t>(bytes));
  scales_of_rows(scratch, first_row, rows);
  const auto* const codes = reinterpret_cast<const uint8_t*>(scratch.codes.data());
  dequantise(count, dtype, destination, [&](int64_t begin, int64_t n, float* floats) {
    for (int64_t i = first + begin; i < first + begin + n;) {
      const int64_t row = i / columns, column = i % columns, group = column / group_;
      const int64_t run = std::min((group + 1) * group_ - column, first + begin + n - i);
      const float scale = scratch.scales[static_cast<size_t>(one_scale_ ? 0 : (row - first_row) * groups() + group)];
      const float zero = zeros_.empty() ? 0.0f : zeros_[static_cast<size_t>(row * groups() + group)];
      const uint8_t* const of_row = codes + (row - first_row) * row_bytes();
      for (int64_t k = column; k < column + run; ++k) {
        const uint8_t code = bits_ == 8 ? of_row[k] : k % 2 == 0 ? of_row[k / 2] & 15 : of_row[k / 2] >> 4;
        *floats++ = (values_[code] - zero) * scale;
      }
      i += run;
    }
  });
}

const PackedFormat* CompressedMatrix::same_format() const {
  const DType codes = codes_.entry->dtype;
  if (codes == DType::kU8) return scales_.entry->float8_e4m3 ? nullptr : &mxfp4_format();
  if (!zeros_.empty() || one_scale_) return nullptr;
  if (bits_ == 8) return group_ == shape_[1] ? &packed_int8_format() : nullptr;
  if (scales_.entry->dtype != DType::kBF16 || group_ % 32 != 0) return nullptr;
  return &int4_format(group_ % 128 == 0 ? 128 : 32);
}

void CompressedMatrix::read_chunk(const PackedLayout& layout, std::byte* chunk) const {
  const int64_t rows = shape_[0], row = layout.columns * bits_ / 8;
  if (row == row_bytes()) {
    codes_.file->read(*codes_.entry, 0, chunk, codes_.entry->bytes);
  } else {  // words end with their row
    for (int64_t r = 0; r < rows; ++r) {
      codes_.file->read(*codes_.entry, static_cast<uint64_t>(r * row_bytes()), chunk + r * row,
                        static_cast<uint64_t>(row));
    }
  }
  if (codes_.entry->dtype == DType::kU8) {
    return scales_.file->read(*scales_.entry, 0, chunk + layout.scales, scales_.entry->bytes);
  }
  if (bits_ == 8 && codes_.entry->dtype == DType::kI32) {  // from code + 128 to two's complement
    std::transform(chunk, chunk + rows * row, chunk, [](std::byte code) { return code ^ std::byte{0x80}; });
  }
  std::vector<float> scales(static_cast<size_t>(rows * groups()));
  scales_.file->read_floats(*scales_.entry, 0, scales.data(), rows * groups());
  expect_finite(scales_, scales.data(), rows * groups());
  if (bits_ == 8) return (void)std::memcpy(chunk + layout.scales, scales.data(), scales.size() * sizeof(float));
  auto* packed = reinterpret_cast<BFloat16*>(chunk + layout.scales);
  for (const float scale : scales) packed = std::fill_n(packed, group_ / layout.block, BFloat16(scale));
}

}  // namespace hone
