#include "weights/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/files/durable_file.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"

namespace hone {

namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;

constexpr std::array<std::pair<std::string_view, DType>, 10> kDTypes = {{{"F32", DType::kF32},
                                                                         {"BF16", DType::kBF16},
                                                                         {"F16", DType::kF16},
                                                                         {"F64", DType::kF64},
                                                                         {"I64", DType::kI64},
                                                                         {"I32", DType::kI32},
                                                                         {"I16", DType::kI16},
                                                                         {"I8", DType::kI8},
                                                                         {"U8", DType::kU8},
                                                                         {"BOOL", DType::kBool}}};

constexpr std::string_view kFloat8E4m3 = "F8_E4M3";

constexpr size_t kMostDimensions = 64;  // NumPy's limit

/// Finds a repeated name at the top level of an object, of which the parser would keep only one.
class RepeatedName : public nlohmann::json_sax<Json> {
 public:
  static std::string find(std::string_view object) {
    RepeatedName finder;
    Json::sax_parse(object, &finder);
    return finder.repeated_;
  }

  bool key(std::string& name) override {
    if (depth_ == 1 && !names_.insert(name).second) repeated_ = name;
    return repeated_.empty();
  }
  bool start_object(size_t) override { return ++depth_, true; }
  bool end_object() override { return --depth_, true; }
  bool start_array(size_t) override { return ++depth_, true; }
  bool end_array() override { return --depth_, true; }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(int64_t) override { return true; }
  bool number_unsigned(uint64_t) override { return true; }
  bool number_float(double, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(Json::binary_t&) override { return true; }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  int depth_ = 0;
  std::set<std::string> names_;
  std::string repeated_;
};

}  // namespace

std::string_view safetensors_name(DType dtype) {
  for (const auto& [name, value] : kDTypes) {
    if (value == dtype) return name;
  }
  HONE_ASSERT(false, std::string(name_of(dtype)));
}

int64_t SafetensorsEntry::numel() const {
  int64_t n = 1;
  for (int64_t dim : shape) n *= dim;
  return n;
}

std::string SafetensorsEntry::shape_text() const { return fmt::format("[{}]", fmt::join(shape, ", ")); }

SafetensorsFile::SafetensorsFile(std::filesystem::path path) : file_(std::move(path)) { parse(); }

void SafetensorsFile::broken(const std::string& what) const {
  throw UserError("broken safetensors file: " + what, path().string(),
                  "the file is damaged or incomplete: download or copy it again");
}

void SafetensorsFile::parse() {
  const uint64_t file_size = file_.size();
  uint64_t header_bytes = 0;
  if (file_size < 8) broken(fmt::format("{} bytes are too few", file_size));
  file_.read(0, &header_bytes, 8);
  if (header_bytes > kMaxHeaderBytes || header_bytes > file_size - 8) {
    broken(fmt::format("its header claims {} bytes, the file has {}", header_bytes, file_size));
  }
  std::string header = file_.read(8, header_bytes);
  if (nested_deeply(header)) broken("its header is nested too deeply");
  if (const std::string name = RepeatedName::find(header); !name.empty()) broken("'" + name + "' appears twice");
  const Json json = Json::parse(header, nullptr, false);
  if (!json.is_object()) broken("its header is not a JSON object");
  header = {};

  const uint64_t data_begin = 8 + header_bytes;
  for (const auto& [name, value] : json.items()) {
    if (name == "__metadata__") {
      if (!value.is_object()) broken("__metadata__ is not an object");
      for (const auto& [key, text] : value.items()) {
        if (!text.is_string()) broken("__metadata__ '" + key + "' is not a string");
        metadata_[key] = text.get<std::string>();
      }
      continue;
    }
    entries_.push_back(parse_entry(name, value, data_begin, file_size - data_begin));
  }
  std::stable_sort(entries_.begin(), entries_.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  uint64_t end = data_begin;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const SafetensorsEntry& entry = entries_[i];
    if (entry.begin < end)
      broken(
          fmt::format("the bytes of '{}' overlap those of '{}'", entry.name, i ? entries_[i - 1].name : "the header"));
    if (entry.begin > end)
      broken(fmt::format("{} bytes before '{}' belong to no tensor", entry.begin - end, entry.name));
    end = entry.begin + entry.bytes;
    by_name_[entry.name] = i;
  }
  if (end != file_size) broken(fmt::format("{} bytes after the last tensor belong to none", file_size - end));
}

SafetensorsEntry SafetensorsFile::parse_entry(const std::string& name, const Json& value, uint64_t data_begin,
                                              uint64_t data_bytes) const {
  SafetensorsEntry entry;
  entry.name = name;
  if (!value.is_object() || !value.contains("dtype") || !value.contains("shape") || !value.contains("data_offsets")) {
    broken("'" + name + "' lacks dtype, shape or data_offsets");
  }
  const Json &dtype = value["dtype"], &shape = value["shape"], &offsets = value["data_offsets"];
  if (!dtype.is_string()) broken("the dtype of '" + name + "' is not a string");
  entry.float8_e4m3 = dtype == kFloat8E4m3;
  const auto known = std::find_if(kDTypes.begin(), kDTypes.end(), [&](const auto& pair) {
    return entry.float8_e4m3 ? pair.second == DType::kU8 : dtype == pair.first;
  });
  if (known == kDTypes.end()) {
    throw UserError(fmt::format("tensor '{}' has the dtype {}, which is not supported", name, dtype.dump()),
                    path().string(),
                    "use a checkpoint in bfloat16, float16, float32, or float8_e4m3fn with block scales");
  }
  entry.dtype = known->second;
  uint64_t bytes = size_of(entry.dtype);
  if (!shape.is_array()) broken("the shape of '" + name + "' is not a list");
  if (shape.size() > kMostDimensions) broken(fmt::format("'{}' has {} dimensions", name, shape.size()));
  for (const Json& dim : shape) {
    if (!dim.is_number_unsigned()) broken("the shape of '" + name + "' is not a list of sizes");
    const auto size = dim.get<uint64_t>();
    if (size > (uint64_t{1} << 48) || (size != 0 && bytes > (uint64_t{1} << 62) / size))
      broken("the shape of '" + name + "' is too large");
    bytes *= size;
    entry.shape.push_back(static_cast<int64_t>(size));
  }
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    broken("the data_offsets of '" + name + "' are not two sizes");
  }
  const auto begin = offsets[0].get<uint64_t>(), end = offsets[1].get<uint64_t>();
  if (begin > end || end > data_bytes) {
    broken(fmt::format("'{}' ends at byte {} of {}: the file is truncated", name, end, data_bytes));
  }
  if (end - begin != bytes) {
    broken(fmt::format("'{}' has {} bytes, its shape {} needs {}", name, end - begin, entry.shape_text(), bytes));
  }
  entry.begin = data_begin + begin;
  entry.bytes = bytes;
  return entry;
}

const SafetensorsEntry* SafetensorsFile::find(const std::string& name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &entries_[it->second];
}

const SafetensorsEntry& SafetensorsFile::at(const std::string& name) const {
  if (const SafetensorsEntry* entry = find(name)) return *entry;
  throw UserError("the file has no tensor '" + name + "'", path().string());
}

void SafetensorsFile::read(const SafetensorsEntry& entry, uint64_t offset, void* destination, uint64_t count) const {
  HONE_ASSERT(offset + count <= entry.bytes, entry.name);
  file_.read(entry.begin + offset, destination, count);
  if (ledger_) {
    ledger_->add(path().filename().string(), entry.begin + offset, {static_cast<const std::byte*>(destination), count});
  }
}

void SafetensorsFile::prefetch(const SafetensorsEntry& entry, uint64_t offset, uint64_t count) const {
  HONE_ASSERT(offset + count <= entry.bytes, entry.name);
  file_.prefetch(entry.begin + offset, count);
}

namespace {

template <class T>
void convert(const std::vector<std::byte>& bytes, float* destination, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, bytes.data() + static_cast<size_t>(i) * sizeof(T), sizeof(T));
    destination[i] = static_cast<float>(value);
  }
}

}  // namespace

void SafetensorsFile::read_floats(const SafetensorsEntry& entry, int64_t first, float* destination,
                                  int64_t count) const {
  const uint64_t element = size_of(entry.dtype);
  const uint64_t offset = static_cast<uint64_t>(first) * element;
  if (entry.dtype == DType::kF32) return read(entry, offset, destination, static_cast<uint64_t>(count) * element);
  std::vector<std::byte> bytes(static_cast<size_t>(count) * element);
  read(entry, offset, bytes.data(), bytes.size());
  switch (entry.dtype) {
    case DType::kBF16:
      return convert<BFloat16>(bytes, destination, count);
    case DType::kF16:
      return convert<Float16>(bytes, destination, count);
    case DType::kF64:
      return convert<double>(bytes, destination, count);
    default:
      throw UserError(fmt::format("tensor '{}' is {}, not floating point", entry.name, entry.dtype_name()),
                      path().string());
  }
}

std::vector<float> SafetensorsFile::read_floats(const std::string& name) const {
  const SafetensorsEntry& entry = at(name);
  std::vector<float> values(static_cast<size_t>(entry.numel()));
  read_floats(entry, 0, values.data(), entry.numel());
  return values;
}

std::vector<int64_t> SafetensorsFile::read_integers(const std::string& name) const {
  const SafetensorsEntry& entry = at(name);
  std::vector<int64_t> values(static_cast<size_t>(entry.numel()));
  if (entry.dtype == DType::kI64) {
    read(entry, 0, values.data(), entry.bytes);
  } else if (entry.dtype == DType::kI32) {
    std::vector<int32_t> narrow(values.size());
    read(entry, 0, narrow.data(), entry.bytes);
    std::copy(narrow.begin(), narrow.end(), values.begin());
  } else {
    throw UserError(fmt::format("tensor '{}' is {}, not int64 or int32", name, name_of(entry.dtype)), path().string());
  }
  return values;
}

int64_t SafetensorsWriter::Announced::numel() const {
  int64_t n = 1;
  for (int64_t dim : shape) n *= dim;
  return n;
}

std::string safetensors_header(std::span<const SafetensorsWriter::Announced> tensors,
                               const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t end = 0;
  for (const SafetensorsWriter::Announced& tensor : tensors) {
    const auto bytes = static_cast<uint64_t>(tensor.bytes());
    header[tensor.name] = {{"dtype", tensor.float8_e4m3 ? kFloat8E4m3 : safetensors_name(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {end, end + bytes}}};
    end += bytes;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // tensor bytes start at a multiple of 8
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text;
}

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, std::vector<Announced> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : path_(std::move(path)), temporary_(temporary_beside(path_)), tensors_(std::move(tensors)) {
  for (const Announced& tensor : tensors_) announced_bytes_ += static_cast<uint64_t>(tensor.bytes());
  descriptor_ = create_new_file(temporary_);
  if (descriptor_ < 0) {
    throw UserError("the file cannot be written: " + std::string(std::strerror(errno)), path_.string(),
                    "check the folder's permissions and free space");
  }
  const std::string header = safetensors_header(tensors_, metadata);
  write(header.data(), header.size());
  written_ = 0;
}

SafetensorsWriter::~SafetensorsWriter() {
  if (descriptor_ < 0) return;
  close(descriptor_);
  std::error_code ignored;
  std::filesystem::remove(temporary_, ignored);
}

void SafetensorsWriter::write(const void* data, uint64_t bytes) {
  const auto* in = static_cast<const char*>(data);
  written_ += bytes;
  checksum_.bytes += bytes;
  checksum_.crc32c = extend_crc32c(checksum_.crc32c, {static_cast<const std::byte*>(data), bytes});
  while (bytes > 0) {
    const ssize_t put = ::write(descriptor_, in, std::min<uint64_t>(bytes, uint64_t{1} << 30));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) {
      throw UserError("the file cannot be written: " + std::string(std::strerror(errno)), path_.string(),
                      "free space on the disk; nothing that was saved before is lost");
    }
    in += put;
    bytes -= static_cast<uint64_t>(put);
    start_writing_back(static_cast<uint64_t>(put));
  }
}

void SafetensorsWriter::start_writing_back(uint64_t bytes) {
  constexpr uint64_t kTogether = uint64_t{64} << 20;
  not_started_ += bytes;
  if (not_started_ < kTogether) return;
  const off64_t end = lseek64(descriptor_, 0, SEEK_CUR);
  // If the file system does not support this, only fsync takes longer.
  sync_file_range(descriptor_, end - static_cast<off64_t>(not_started_), static_cast<off64_t>(not_started_),
                  SYNC_FILE_RANGE_WRITE);
  not_started_ = 0;
}

void SafetensorsWriter::write_floats(DType dtype, const float* values, int64_t count) {
  if (dtype == DType::kF32) return write(values, static_cast<uint64_t>(count) * sizeof(float));
  HONE_ASSERT(dtype == DType::kBF16 || dtype == DType::kF16);
  std::vector<uint16_t> bits(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    bits[static_cast<size_t>(i)] = dtype == DType::kBF16 ? BFloat16(values[i]).bits : Float16(values[i]).bits;
  }
  write(bits.data(), bits.size() * sizeof(uint16_t));
}

FileChecksum SafetensorsWriter::finish() {
  HONE_ASSERT(written_ == announced_bytes_, path_.string());
  const bool synced = sync_file(descriptor_);
  close(std::exchange(descriptor_, -1));
  if (!synced) throw UserError("the file cannot be synced to disk", path_.string(), "check the disk");
  const SafetensorsFile check(temporary_);
  HONE_ASSERT(check.entries().size() == tensors_.size(), path_.string());
  std::filesystem::rename(temporary_, path_);
  return checksum_;
}

}  // namespace hone
