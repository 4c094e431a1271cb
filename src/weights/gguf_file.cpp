#include "weights/gguf_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "core/base/error.h"

namespace hone {

namespace {

constexpr std::string_view kGgufMagic = "GGUF";
constexpr uint32_t kGgufVersion = 3, kOldestGgufVersion = 2;  // version 2 has the same layout
constexpr uint64_t kGgufAlignment = 32;                       // without general.alignment
constexpr uint64_t kLargestAlignment = uint64_t{1} << 16;
constexpr const char* kAlignmentKey = "general.alignment";
constexpr uint64_t kMostGgufHeader = uint64_t{512} << 20;
constexpr uint64_t kMostGgufKeys = 1 << 16, kMostGgufTensors = 1 << 20;
constexpr uint64_t kLongestGgufKey = 1 << 16;
constexpr uint32_t kMostGgufDimensions = 4;

/// The numbers of the types of values.
enum class ValueType : uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64 };

constexpr uint64_t size_of_value(ValueType type) {
  constexpr std::array<uint64_t, 13> kSizes = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};
  return kSizes[static_cast<size_t>(type)];
}

uint64_t round_up(uint64_t bytes, uint64_t alignment) { return (bytes + alignment - 1) / alignment * alignment; }

}  // namespace

void GgufMetadata::set(const std::string& key, GgufValue value) {
  const auto [at, added] = by_key_.emplace(key, values_.size());
  if (added) {
    values_.emplace_back(key, std::move(value));
  } else {
    values_[at->second].second = std::move(value);
  }
}

const GgufValue* GgufMetadata::find(const std::string& key) const {
  const auto at = by_key_.find(key);
  return at == by_key_.end() ? nullptr : &values_[at->second].second;
}

void GgufMetadata::refuse(const std::string& key, const char* what) const {
  throw UserError(fmt::format("the value of '{}' is not {}", key, what), file,
                  "the file is damaged, or its architecture is a newer one");
}

template <class T>
std::optional<T> GgufMetadata::value(const std::string& key, const char* what) const {
  const GgufValue* found = find(key);
  if (found == nullptr) return std::nullopt;
  const T* held = std::get_if<T>(found);
  if (held == nullptr) refuse(key, what);
  return *held;
}

std::optional<std::string> GgufMetadata::text(const std::string& key) const {
  return value<std::string>(key, "a text");
}
std::optional<int64_t> GgufMetadata::integer(const std::string& key) const { return value<int64_t>(key, "an integer"); }
std::optional<bool> GgufMetadata::boolean(const std::string& key) const { return value<bool>(key, "true or false"); }
std::optional<double> GgufMetadata::number(const std::string& key) const {
  const std::optional<double> found = value<double>(key, "a number");
  if (found && !std::isfinite(*found)) refuse(key, "a finite number");
  return found;
}

template <class T>
const std::vector<T>* GgufMetadata::list(const std::string& key) const {
  const GgufValue* found = find(key);
  if (found == nullptr) return nullptr;
  const auto* held = std::get_if<std::vector<T>>(found);
  if (held == nullptr) refuse(key, "a list of such values");
  return held;
}
template const std::vector<bool>* GgufMetadata::list(const std::string&) const;
template const std::vector<int64_t>* GgufMetadata::list(const std::string&) const;
template const std::vector<double>* GgufMetadata::list(const std::string&) const;
template const std::vector<std::string>* GgufMetadata::list(const std::string&) const;

int64_t GgufEntry::numel() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

uint64_t GgufEntry::bytes() const {
  const GgufFormat& format = gguf_format(type);
  return static_cast<uint64_t>(numel() / format.values) * static_cast<uint64_t>(format.bytes);
}

/// Reads the header from front to back.
class GgufFile::Reader {
 public:
  explicit Reader(const FileBytes& file) : file_(file), end_(std::min(file.size(), kMostGgufHeader)) {}

  uint64_t position() const { return position_; }

  [[noreturn]] void broken(const std::string& what) const {
    throw UserError("broken GGUF file: " + what, file_.path().string(),
                    "the file is damaged or incomplete: download or copy it again");
  }

  template <class T>
  T number() {
    T value;
    take(&value, sizeof(T));
    return value;
  }
  std::string text(uint64_t longest) {
    const auto length = number<uint64_t>();
    if (length > longest) broken(fmt::format("a text of {} bytes", length));
    require(length);
    std::string text(length, '\0');
    take(text.data(), length);
    return text;
  }
  ValueType value_type() {
    const auto type = number<uint32_t>();
    if (type > static_cast<uint32_t>(ValueType::kF64)) broken(fmt::format("a value of unknown type {}", type));
    return static_cast<ValueType>(type);
  }
  GgufValue value(const std::string& key) {
    const ValueType type = value_type();
    if (type != ValueType::kArray) return single(type, key);
    const ValueType of = value_type();
    const auto count = number<uint64_t>();
    if (of == ValueType::kArray) broken("'" + key + "' is a list of lists");
    if (count > (end_ - position_) / size_of_value(of)) broken(fmt::format("'{}' claims {} values", key, count));
    if (of == ValueType::kString) return several<std::string>(of, count, key);
    if (of == ValueType::kBool) return several<bool>(of, count, key);
    if (of == ValueType::kF32 || of == ValueType::kF64) return several<double>(of, count, key);
    return several<int64_t>(of, count, key);
  }
  /// Whether `bytes` more are there.
  void require(uint64_t bytes) const {
    if (bytes > end_ - position_) {
      broken(end_ < file_.size() ? fmt::format("its header has more than {} bytes", kMostGgufHeader)
                                 : "it ends inside its header");
    }
  }

 private:
  void take(void* destination, uint64_t bytes) {
    require(bytes);
    auto* out = static_cast<char*>(destination);
    while (bytes > 0) {
      if (at_ == buffer_.size()) fill();
      const uint64_t part = std::min<uint64_t>(bytes, buffer_.size() - at_);
      std::memcpy(out, buffer_.data() + at_, part);
      out += part, at_ += part, position_ += part, bytes -= part;
    }
  }
  void fill() {
    buffer_.resize(std::min<uint64_t>(uint64_t{1} << 20, end_ - position_));
    file_.read(position_, buffer_.data(), buffer_.size());
    at_ = 0;
  }
  int64_t large(uint64_t value, const std::string& key) const {
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) broken("'" + key + "' is too large");
    return static_cast<int64_t>(value);
  }
  GgufValue single(ValueType type, const std::string& key) {
    switch (type) {
      case ValueType::kU8:
        return int64_t{number<uint8_t>()};
      case ValueType::kI8:
        return int64_t{number<int8_t>()};
      case ValueType::kU16:
        return int64_t{number<uint16_t>()};
      case ValueType::kI16:
        return int64_t{number<int16_t>()};
      case ValueType::kU32:
        return int64_t{number<uint32_t>()};
      case ValueType::kI32:
        return int64_t{number<int32_t>()};
      case ValueType::kU64:
        return large(number<uint64_t>(), key);
      case ValueType::kI64:
        return number<int64_t>();
      case ValueType::kF32:
        return static_cast<double>(number<float>());
      case ValueType::kF64:
        return number<double>();
      case ValueType::kBool: {
        const auto byte = number<uint8_t>();
        if (byte > 1) broken("'" + key + "' is neither true nor false");
        return byte == 1;
      }
      default:
        return text(kMostGgufHeader);
    }
  }
  template <class T>
  GgufValue several(ValueType of, uint64_t count, const std::string& key) {
    std::vector<T> values;
    values.reserve(count);
    for (uint64_t i = 0; i < count; ++i) values.push_back(std::get<T>(single(of, key)));
    return values;
  }

  const FileBytes& file_;
  const uint64_t end_;
  uint64_t position_ = 0;
  std::string buffer_;
  size_t at_ = 0;
};

GgufFile::GgufFile(std::filesystem::path path) : file_(std::move(path)) {
  metadata_.file = file_.path().string();
  parse();
}

bool GgufFile::is_one(const std::filesystem::path& path) {
  if (path.extension() == ".gguf") return true;
  std::array<char, 4> first{};
  std::ifstream(path, std::ios::binary).read(first.data(), first.size());
  return std::string_view(first.data(), first.size()) == kGgufMagic;
}

void GgufFile::parse() {
  Reader reader(file_);
  std::array<char, 4> magic;
  for (char& letter : magic) letter = reader.number<char>();
  if (std::string_view(magic.data(), magic.size()) != kGgufMagic) reader.broken("it does not begin with GGUF");
  const auto version = reader.number<uint32_t>();
  if (version < kOldestGgufVersion || version > kGgufVersion) {
    const bool swapped = version != 0 && (version & 0xFFFFu) == 0;
    throw UserError(swapped ? "the file is big-endian" : fmt::format("GGUF version {} is not read", version),
                    path().string(), "use a little-endian file of version 2 or 3");
  }
  const auto tensors = reader.number<uint64_t>(), keys = reader.number<uint64_t>();
  if (keys > kMostGgufKeys) reader.broken(fmt::format("it claims {} keys", keys));
  if (tensors > kMostGgufTensors) reader.broken(fmt::format("it claims {} tensors", tensors));
  for (uint64_t i = 0; i < keys; ++i) {
    const std::string key = reader.text(kLongestGgufKey);
    if (metadata_.find(key) != nullptr) reader.broken("the key '" + key + "' appears twice");
    metadata_.set(key, reader.value(key));
  }
  for (uint64_t i = 0; i < tensors; ++i) {
    GgufEntry entry;
    entry.name = reader.text(kLongestGgufKey);
    if (!by_name_.emplace(entry.name, entries_.size()).second) reader.broken("'" + entry.name + "' appears twice");
    const auto dimensions = reader.number<uint32_t>();
    if (dimensions < 1 || dimensions > kMostGgufDimensions) {
      reader.broken(fmt::format("'{}' has {} dimensions", entry.name, dimensions));
    }
    uint64_t numel = 1;
    for (uint32_t d = 0; d < dimensions; ++d) {
      const auto size = reader.number<uint64_t>();
      if (size == 0 || size > (uint64_t{1} << 48) || numel > (uint64_t{1} << 48) / size) {
        reader.broken("the shape of '" + entry.name + "' is impossible");
      }
      numel *= size;
      entry.shape.insert(entry.shape.begin(), static_cast<int64_t>(size));
    }
    const auto type = reader.number<uint32_t>();
    const GgufFormat* format = find_gguf_format(type);
    if (format == nullptr) {
      const std::string_view other = other_gguf_type(type);
      throw UserError(fmt::format("tensor '{}' has the type {}, which is not read", entry.name,
                                  other.empty() ? std::to_string(type) : std::string(other)),
                      path().string(),
                      "use a file in F32, F16, BF16, Q8_0, Q6_K, Q5_K, Q4_K, Q5_0, Q5_1, Q4_0 or Q4_1");
    }
    entry.type = format->type;
    if (entry.shape.back() % format->values != 0) {
      reader.broken(fmt::format("'{}' has rows of {} values, and {} blocks of {}", entry.name, entry.shape.back(),
                                format->name, format->values));
    }
    entry.begin = reader.number<uint64_t>();
    entries_.push_back(std::move(entry));
  }
  const int64_t alignment = metadata_.integer(kAlignmentKey).value_or(kGgufAlignment);
  if (alignment < 1 || alignment > static_cast<int64_t>(kLargestAlignment) || (alignment & (alignment - 1)) != 0) {
    reader.broken(fmt::format("{} is {}", kAlignmentKey, alignment));
  }
  check_places(round_up(reader.position(), static_cast<uint64_t>(alignment)), static_cast<uint64_t>(alignment));
}

void GgufFile::check_places(uint64_t data_begin, uint64_t alignment) {
  const Reader reader(file_);
  const uint64_t available = file_.size() > data_begin ? file_.size() - data_begin : 0;
  std::vector<GgufEntry*> places;
  for (GgufEntry& entry : entries_) {
    if (entry.begin % alignment != 0) reader.broken(fmt::format("'{}' begins at odd byte {}", entry.name, entry.begin));
    if (entry.begin > available || entry.bytes() > available - entry.begin) {
      reader.broken(fmt::format("'{}' ends after the file: it is truncated", entry.name));
    }
    entry.begin += data_begin;
    places.push_back(&entry);
  }
  std::sort(places.begin(), places.end(), [](const auto* a, const auto* b) { return a->begin < b->begin; });
  for (size_t i = 1; i < places.size(); ++i) {
    if (places[i]->begin < places[i - 1]->begin + places[i - 1]->bytes()) {
      reader.broken(fmt::format("the bytes of '{}' overlap those of '{}'", places[i]->name, places[i - 1]->name));
    }
  }
}

const GgufEntry* GgufFile::find(const std::string& name) const {
  const auto at = by_name_.find(name);
  return at == by_name_.end() ? nullptr : &entries_[at->second];
}

void GgufFile::read_floats(const GgufEntry& entry, int64_t first, int64_t count, float* values) const {
  const GgufFormat& format = gguf_format(entry.type);
  HONE_ASSERT(first >= 0 && count >= 0 && first + count <= entry.numel(), entry.name);
  const int64_t begin = first / format.values, end = (first + count + format.values - 1) / format.values;
  std::vector<std::byte> bytes(static_cast<size_t>((end - begin) * format.bytes));
  file_.read(entry.begin + static_cast<uint64_t>(begin * format.bytes), bytes.data(), bytes.size());
  if (begin * format.values == first && end * format.values == first + count) {
    decode_gguf(entry.type, bytes.data(), count, values);
  } else {
    std::vector<float> blocks(static_cast<size_t>((end - begin) * format.values));
    decode_gguf(entry.type, bytes.data(), static_cast<int64_t>(blocks.size()), blocks.data());
    std::copy_n(blocks.begin() + (first - begin * format.values), count, values);
  }
  for (int64_t i = 0; i < count; ++i) {
    if (std::isfinite(values[i])) continue;
    throw UserError(fmt::format("'{}' has a number that is not finite at element {}", entry.name, first + i),
                    path().string(), "the file is damaged: download or copy it again");
  }
}

namespace {

class HeaderText {
 public:
  template <class T>
  void number(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  void text(const std::string& text) {
    number(static_cast<uint64_t>(text.size()));
    text_ += text;
  }
  void type(ValueType type) { number(static_cast<uint32_t>(type)); }

  void value(const std::string& key, const GgufValue& value) {
    std::visit([&](const auto& held) { put(key, held); }, value);
  }
  std::string& bytes() { return text_; }

 private:
  void put(const std::string&, bool value) { type(ValueType::kBool), number(static_cast<uint8_t>(value)); }
  void put(const std::string& key, int64_t value) {
    HONE_ASSERT(std::in_range<uint32_t>(value), key);
    type(ValueType::kU32), number(static_cast<uint32_t>(value));
  }
  void put(const std::string&, double value) { type(ValueType::kF32), number(static_cast<float>(value)); }
  void put(const std::string&, const std::string& value) { type(ValueType::kString), text(value); }
  void begin_list(ValueType of, size_t count) {
    type(ValueType::kArray), type(of), number(static_cast<uint64_t>(count));
  }
  void put(const std::string&, const std::vector<bool>& values) {
    begin_list(ValueType::kBool, values.size());
    for (const bool value : values) number(static_cast<uint8_t>(value));
  }
  void put(const std::string& key, const std::vector<int64_t>& values) {
    begin_list(ValueType::kI32, values.size());
    for (const int64_t value : values) {
      HONE_ASSERT(std::in_range<int32_t>(value), key);
      number(static_cast<int32_t>(value));
    }
  }
  void put(const std::string&, const std::vector<double>& values) {
    begin_list(ValueType::kF32, values.size());
    for (const double value : values) number(static_cast<float>(value));
  }
  void put(const std::string&, const std::vector<std::string>& values) {
    begin_list(ValueType::kString, values.size());
    for (const std::string& value : values) text(value);
  }

  std::string text_;
};

int64_t gguf_numel(const GgufWriter::Announced& tensor) {
  return std::accumulate(tensor.shape.begin(), tensor.shape.end(), int64_t{1}, std::multiplies<>());
}

}  // namespace

GgufWriter::GgufWriter(const std::filesystem::path& path, const GgufMetadata& metadata, std::vector<Announced> tensors)
    : file_(path), path_(path.string()), tensors_(std::move(tensors)) {
  HeaderText header;
  header.bytes() = kGgufMagic;
  header.number(kGgufVersion);
  header.number(static_cast<uint64_t>(tensors_.size()));
  header.number(static_cast<uint64_t>(metadata.all().size()));
  for (const auto& [key, value] : metadata.all()) {
    HONE_ASSERT(key != kAlignmentKey);
    header.text(key);
    header.value(key, value);
  }
  uint64_t offset = 0;
  std::set<std::string> names;
  for (const Announced& tensor : tensors_) {
    const GgufFormat& format = gguf_format(tensor.type);
    HONE_ASSERT(tensor.name.size() <= kLongestGgufName && names.insert(tensor.name).second, tensor.name);
    HONE_ASSERT(tensor.shape.back() % format.values == 0 && gguf_numel(tensor) > 0, tensor.name);
    header.text(tensor.name);
    header.number(static_cast<uint32_t>(tensor.shape.size()));
    for (auto size = tensor.shape.rbegin(); size != tensor.shape.rend(); ++size) {
      header.number(static_cast<uint64_t>(*size));
    }
    header.number(static_cast<uint32_t>(tensor.type));
    header.number(offset);
    offset =
        round_up(offset + static_cast<uint64_t>(gguf_numel(tensor) / format.values * format.bytes), kGgufAlignment);
  }
  file_.write(header.bytes());
  written_ = header.bytes().size();
  pad();
  if (!tensors_.empty()) left_ = gguf_numel(tensors_.front());
}

void GgufWriter::pad() {
  const uint64_t end = round_up(written_, kGgufAlignment);
  file_.write(std::string(end - written_, '\0'));
  written_ = end;
}

void GgufWriter::write_floats(std::span<const float> values) {
  HONE_ASSERT(current_ < tensors_.size());
  const Announced& tensor = tensors_[current_];
  const GgufFormat& format = gguf_format(tensor.type);
  const auto count = static_cast<int64_t>(values.size());
  HONE_ASSERT(count <= left_ && count % tensor.shape.back() == 0, tensor.name);
  bytes_.resize(static_cast<size_t>(count / format.values * format.bytes));
  if (!encode_gguf(tensor.type, values.data(), count, bytes_.data())) {
    throw UserError(fmt::format("'{}' has a number that is not finite in {}", tensor.name, format.name), path_,
                    "nothing was written; bf16 and f32 hold larger numbers than the other types");
  }
  file_.write(bytes_);
  written_ += bytes_.size();
  left_ -= count;
  if (left_ > 0) return;
  pad();
  if (++current_ < tensors_.size()) left_ = gguf_numel(tensors_[current_]);
}

const std::filesystem::path& GgufWriter::complete() {
  HONE_ASSERT(current_ == tensors_.size());
  return file_.complete();
}

}  // namespace hone
