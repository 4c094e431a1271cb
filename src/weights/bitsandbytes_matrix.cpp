#include "weights/bitsandbytes_matrix.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "core/base/error.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"
#include "weights/dequantise.h"
#include "weights/stored_tensor.h"

namespace hone {

namespace {

constexpr int64_t kLargestBlock = 1 << 20;
constexpr uint64_t kMostStateBytes = 1 << 16;
constexpr float kPerCode = 1.0f / 127.0f;

std::optional<int64_t> size_in(const Json& json, const char* key) {
  if (!json.contains(key)) return std::nullopt;
  const std::optional<int64_t> size = whole_number<int64_t>(json[key]);
  return size && *size > 0 && *size <= kLargestBlock ? size : std::nullopt;
}

template <size_t n>
bool read_map(const Checkpoint::Tensor& tensor, std::array<float, n>& map) {
  if (tensor.entry->dtype != DType::kF32 || tensor.entry->numel() != int64_t{n}) return false;
  tensor.file->read_floats(*tensor.entry, 0, map.data(), int64_t{n});
  return true;
}

/// bitsandbytes' table of fp4: sign, two bits of exponent, one of mantissa, in its order of codes.
constexpr std::array<float, 16> kFp4Values = {0.0f,      0.0052083333f, 2.0f / 3,  1.0f,           1.0f / 3,  0.5f,
                                              1.0f / 6,  0.25f,         0.0f,      -0.0052083333f, -2.0f / 3, -1.0f,
                                              -1.0f / 3, -0.5f,         -1.0f / 6, -0.25f};

/// Whether two tables are the same but for rounding; another type's differ by far more.
bool same_map(const std::array<float, 16>& a, const std::array<float, 16>& b) {
  constexpr float kRounding = 1e-4f;
  return std::equal(a.begin(), a.end(), b.begin(), [](float x, float y) { return std::abs(x - y) <= kRounding; });
}

}  // namespace

bool BitsandbytesMatrix::has_codes_of(const SafetensorsEntry& entry) {
  return is_unsigned(entry) || entry.dtype == DType::kI8;
}

BitsandbytesMatrix::BitsandbytesMatrix(const Checkpoint& checkpoint, const Checkpoint::Tensor& codes,
                                       std::vector<std::string>& missing)
    : codes_(codes), four_bits_(is_unsigned(*codes.entry)) {
  four_bits_ ? find_four_bits(checkpoint, missing) : find_eight_bits(checkpoint, missing);
}

void BitsandbytesMatrix::contradict(const std::string& what) const {
  throw UserError(fmt::format("'{}', which bitsandbytes quantised, cannot be read: {}", codes_.entry->name, what),
                  codes_.file->path().string(), "download the checkpoint again, or use its bfloat16 version");
}

const Checkpoint::Tensor* BitsandbytesMatrix::find(const Checkpoint& checkpoint, const std::string& name,
                                                   std::vector<std::string>& missing) {
  const Checkpoint::Tensor* found = checkpoint.find(name);
  if (found == nullptr) {
    missing.push_back(name);
  } else {
    other_names_.push_back(name);
  }
  return found;
}

void BitsandbytesMatrix::find_eight_bits(const Checkpoint& checkpoint, std::vector<std::string>& missing) {
  const std::string& name = codes_.entry->name;
  constexpr std::string_view kWeight = "weight";
  shape_ = codes_.entry->shape;
  if (!name.ends_with(kWeight) || shape_.size() != 2) contradict("codes of 8 bits are of a matrix NAME.weight");
  const std::string module = name.substr(0, name.size() - kWeight.size());
  const Checkpoint::Tensor* scales = find(checkpoint, module + "SCB", missing);
  if (const Checkpoint::Tensor* format =
          checkpoint.find(name + "_format")) {  // 0: rows, which newer versions all write
    other_names_.push_back(name + "_format");
    uint8_t order = 0;
    if (!is_unsigned(*format->entry) || format->entry->bytes != 1) contradict("its weight_format is not one byte");
    format->file->read(*format->entry, 0, &order, 1);
    if (order != 0) contradict("its codes are in the order of tiles of an old version (weight_format)");
  }
  if (scales == nullptr) return;
  if (scales->entry->dtype != DType::kF32 || scales->entry->numel() != shape_[0]) {
    contradict(fmt::format("SCB is not float32 [{}]", shape_[0]));
  }
  scales_ = *scales;
}

void BitsandbytesMatrix::read_state(const Checkpoint::Tensor& tensor, const std::string& type, bool nested) {
  if (!is_unsigned(*tensor.entry) || tensor.entry->bytes > kMostStateBytes) contradict("its quant_state is not text");
  std::string text(tensor.entry->bytes, '\0');
  tensor.file->read(*tensor.entry, 0, text.data(), text.size());
  const Json json = parse_json(text);
  const std::optional<int64_t> block = json.is_object() ? size_in(json, "blocksize") : std::nullopt;
  if (!block) contradict("its quant_state has no blocksize");
  if (json.contains("quant_type") && json["quant_type"] != type) {
    contradict(fmt::format("its quant_state is named {} and says quant_type {}", type, json["quant_type"].dump()));
  }
  const Json shape = json.contains("shape") ? json["shape"] : Json();
  if (!shape.is_array() || shape.size() != 2) contradict("its quant_state has no shape of a matrix");
  for (const Json& dim : shape) {
    const std::optional<int64_t> size = whole_number<int64_t>(dim);
    if (!size || *size <= 0 || *size > INT32_MAX) contradict("its quant_state has no shape of a matrix");
    shape_.push_back(*size);
  }
  if (codes_.entry->numel() != ceil_div(shape_[0] * shape_[1], 2)) {
    contradict(
        fmt::format("it has {} bytes of codes for a shape of [{}]", codes_.entry->numel(), fmt::join(shape_, ", ")));
  }
  state_.block = *block;
  if (nested) {
    const std::optional<int64_t> nested_block = size_in(json, "nested_blocksize");
    if (!nested_block || !json.contains("nested_offset") || !json["nested_offset"].is_number()) {
      contradict("its quant_state has no nested_blocksize and nested_offset");
    }
    state_.nested_block = *nested_block;
    state_.nested_offset = json["nested_offset"].get<float>();
    if (!std::isfinite(state_.nested_offset)) contradict("its nested_offset is not a finite float32 number");
  }
}

int64_t BitsandbytesMatrix::blocks() const { return ceil_div(shape_[0] * shape_[1], state_.block); }

void BitsandbytesMatrix::find_four_bits(const Checkpoint& checkpoint, std::vector<std::string>& missing) {
  const std::string& name = codes_.entry->name;
  const std::string state_name = name + ".quant_state.bitsandbytes__";
  const bool fp4 = checkpoint.find(state_name + "fp4") != nullptr;
  if (fp4 && checkpoint.find(state_name + "nf4") != nullptr) contradict("it has a quant_state of fp4 and one of nf4");
  const char* type = fp4 ? "fp4" : "nf4";
  const Checkpoint::Tensor* state = find(checkpoint, state_name + type, missing);
  const Checkpoint::Tensor* map = find(checkpoint, name + ".quant_map", missing);
  const Checkpoint::Tensor* scales = find(checkpoint, name + ".absmax", missing);
  if (state == nullptr || map == nullptr || scales == nullptr) return;
  const bool nested = is_unsigned(*scales->entry);
  read_state(*state, type, nested);
  if (!read_map(*map, state_.map)) contradict("its quant_map is not float32 [16]");
  // bitsandbytes computes with its own table of the type, whatever the file has.
  if (!same_map(state_.map, fp4 ? kFp4Values : kNf4Values)) {
    contradict(fmt::format("its quant_state says {}, and its quant_map is not that of {}", type, type));
  }
  if (scales->entry->numel() != blocks() || (!nested && scales->entry->dtype != DType::kF32)) {
    contradict(fmt::format("its absmax is not float32 or uint8 [{}]", blocks()));
  }
  scales_ = *scales;
  if (nested) {
    const Checkpoint::Tensor* nested_scales = find(checkpoint, name + ".nested_absmax", missing);
    const Checkpoint::Tensor* nested_map = find(checkpoint, name + ".nested_quant_map", missing);
    if (nested_scales == nullptr || nested_map == nullptr) return;
    const int64_t count = ceil_div(blocks(), state_.nested_block);
    if (nested_scales->entry->dtype != DType::kF32 || nested_scales->entry->numel() != count) {
      contradict(fmt::format("its nested_absmax is not float32 [{}]", count));
    }
    if (!read_map(*nested_map, state_.nested_map)) contradict("its nested_quant_map is not float32 [256]");
    nested_scales_ = *nested_scales;
  }
}

std::vector<std::string> BitsandbytesMatrix::names() const {
  std::vector<std::string> names = {codes_.entry->name};
  names.insert(names.end(), other_names_.begin(), other_names_.end());
  return names;
}

/// scratch.scales: absmax of blocks [first, first + count).
void BitsandbytesMatrix::scales_of_blocks(ReadScratch& scratch, int64_t first, int64_t count) const {
  scratch.scales.resize(static_cast<size_t>(count));
  if (nested_scales_.entry == nullptr) {
    return scales_.file->read_floats(*scales_.entry, first, scratch.scales.data(), count);
  }
  scratch.scale_codes.resize(static_cast<size_t>(count));
  scales_.file->read(*scales_.entry, static_cast<uint64_t>(first), scratch.scale_codes.data(),
                     static_cast<uint64_t>(count));
  const int64_t first_nested = first / state_.nested_block;
  const int64_t nested = (first + count - 1) / state_.nested_block - first_nested + 1;
  scratch.values.resize(static_cast<size_t>(nested));
  nested_scales_.file->read_floats(*nested_scales_.entry, first_nested, scratch.values.data(), nested);
  for (int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(i);
    const auto group = static_cast<size_t>((first + i) / state_.nested_block - first_nested);
    const float centred = state_.nested_map[static_cast<size_t>(scratch.scale_codes[at])] * scratch.values[group];
    scratch.scales[at] = centred + state_.nested_offset;
  }
}

void BitsandbytesMatrix::read(ReadScratch& scratch, int64_t first, int64_t count, DType dtype,
                              std::byte* destination) const {
  if (count == 0) return;
  const int64_t first_byte = four_bits_ ? first / 2 : first;
  const int64_t bytes = (four_bits_ ? ceil_div(first + count, 2) : first + count) - first_byte;
  if (static_cast<int64_t>(scratch.codes.size()) < bytes) scratch.codes.resize(static_cast<size_t>(bytes));
  codes_.file->read(*codes_.entry, static_cast<uint64_t>(first_byte), scratch.codes.data(),
                    static_cast<uint64_t>(bytes));
  const auto* codes = reinterpret_cast<const uint8_t*>(scratch.codes.data());
  const int64_t block = four_bits_ ? state_.block : shape_[1];
  const int64_t first_block = first / block;
  const int64_t blocks = (first + count - 1) / block - first_block + 1;
  if (four_bits_) {
    scales_of_blocks(scratch, first_block, blocks);
  } else {
    scratch.scales.resize(static_cast<size_t>(blocks));
    scales_.file->read_floats(*scales_.entry, first_block, scratch.scales.data(), blocks);
    for (float& scale : scratch.scales) scale *= kPerCode;
  }
  const auto value = [&](int64_t i) {
    if (!four_bits_) return static_cast<float>(static_cast<int8_t>(codes[i - first_byte]));
    const uint8_t byte = codes[i / 2 - first_byte];
    return state_.map[i % 2 == 0 ? byte >> 4 : byte & 15];
  };
  dequantise(count, dtype, destination, [&](int64_t begin, int64_t n, float* floats) {
    for (int64_t i = first + begin; i < first + begin + n;) {
      const float scale = scratch.scales[static_cast<size_t>(i / block - first_block)];
      for (const int64_t end = std::min((i / block + 1) * block, first + begin + n); i < end; ++i) {
        floats[i - first - begin] = value(i) * scale;
      }
    }
  });
}

const PackedFormat* BitsandbytesMatrix::packed_format() const {
  if (!four_bits_) return &packed_int8_format();
  if (state_.block != kNf4Block || state_.map != kNf4Values) return nullptr;
  if (nested_scales_.entry == nullptr) return &nf4_float_scales_format();
  const bool is_nf4 = state_.nested_block == kNf4NestedBlock && state_.nested_map == kNf4ScaleValues;
  return is_nf4 ? &nf4_format() : nullptr;
}

void BitsandbytesMatrix::read_chunk(const PackedLayout& layout, std::byte* chunk) const {
  codes_.file->read(*codes_.entry, 0, chunk, codes_.entry->bytes);
  if (!four_bits_) {
    auto* scales = reinterpret_cast<float*>(chunk + layout.scales);
    scales_.file->read_floats(*scales_.entry, 0, scales, layout.rows);
    expect_finite(scales_, scales, layout.rows);
    for (int64_t row = 0; row < layout.rows; ++row) scales[row] *= kPerCode;
    return;
  }
  scales_.file->read(*scales_.entry, 0, chunk + layout.scales, scales_.entry->bytes);
  const auto floats_at = [&](int64_t offset) { return reinterpret_cast<const float*>(chunk + offset); };
  if (nested_scales_.entry == nullptr) return expect_finite(scales_, floats_at(layout.scales), blocks());
  nested_scales_.file->read(*nested_scales_.entry, 0, chunk + layout.nested, nested_scales_.entry->bytes);
  expect_finite(nested_scales_, floats_at(layout.nested), nested_scales_.entry->numel());
  std::memcpy(chunk + layout.mean, &state_.nested_offset, sizeof(float));
}

}  // namespace hone
