#include "weights/saved_tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <utility>

#include "core/base/error.h"
#include "weights/pickle.h"

namespace hone {

namespace {

/// Limits of an archive. A tensor's has about seven files; that of a dictionary has one for each tensor.
struct ArchiveLimits {
  uint64_t directory_bytes, pickle_bytes;
};
constexpr ArchiveLimits kOneTensor = {uint64_t{1} << 20, uint64_t{1} << 16};
constexpr ArchiveLimits kManyTensors = {uint64_t{64} << 20, uint64_t{64} << 20};
constexpr int64_t kMostElements = int64_t{1} << 48;

/// A stored (uncompressed) file of an archive.
struct ArchiveFile {
  uint64_t begin = 0;  ///< offset in the file on disk
  uint64_t bytes = 0;
};

/// The archive's central directory, at its end.
class Archive {
 public:
  Archive(const FileBytes& file, uint64_t offset, uint64_t length, const ArchiveLimits& limits)
      : file_(file), offset_(offset), length_(length), limits_(limits) {
    if (offset > file.size() || length > file.size() - offset) {
      broken(fmt::format("it should end at byte {}, the file has {}", offset + length, file.size()));
    }
    read_directory();
  }

  /// The only file with this name in the archive's own folder.
  const ArchiveFile& at(const std::string& name) const {
    const auto found = files_.find(name);
    if (found == files_.end()) broken("it has no file '" + name + "'");
    return found->second;
  }
  const ArchiveFile* find(const std::string& name) const {
    const auto found = files_.find(name);
    return found == files_.end() ? nullptr : &found->second;
  }
  std::string text(const std::string& name, uint64_t most) const {
    const ArchiveFile& entry = at(name);
    if (entry.bytes > most) broken(fmt::format("'{}' has {} bytes", name, entry.bytes));
    return file_.read(entry.begin, entry.bytes);
  }
  /// The pickle beside the elements.
  Pickle pickle(const std::set<std::string>& allowed) const {
    if (find("byteorder") != nullptr && text("byteorder", 16) != "little") broken("its numbers are not little-endian");
    return Pickle::parse(text("data.pkl", limits_.pickle_bytes), allowed, where());
  }
  std::string where() const { return fmt::format("{}, byte {}", file_.path().string(), offset_); }
  [[noreturn]] void broken(const std::string& what) const {
    throw UserError("broken tensor archive: " + what, where(), "the file is damaged or incomplete: copy it again");
  }

 private:
  template <class T>
  static T number(const std::string& bytes, size_t at) {
    T value;
    std::memcpy(&value, bytes.data() + at, sizeof(T));
    return value;
  }
  /// Bytes of the archive; `at` is relative to its start.
  std::string bytes(uint64_t at, uint64_t count) const {
    if (at > length_ || count > length_ - at) broken(fmt::format("it is cut off at byte {}", length_));
    return file_.read(offset_ + at, count);
  }

  void read_directory() {
    constexpr uint64_t kEnd = 22, kMostComment = 65535;
    const uint64_t tail_bytes = std::min(length_, kEnd + kMostComment);
    const std::string tail = bytes(length_ - tail_bytes, tail_bytes);
    const size_t end = tail.rfind("PK\x05\x06");
    if (end == std::string::npos || tail.size() - end < kEnd) broken("it has no end record: it is cut off");
    uint64_t entries = number<uint16_t>(tail, end + 10), size = number<uint32_t>(tail, end + 12),
             begin = number<uint32_t>(tail, end + 16);
    if (entries == 0xffff || size == 0xffffffff || begin == 0xffffffff) {
      const uint64_t end_at = length_ - tail_bytes + end;
      if (end_at < 20) broken("its end record is not whole");
      const std::string locator = bytes(end_at - 20, 20);
      if (!locator.starts_with("PK\x06\x07")) broken("its large end record is missing");
      const std::string large = bytes(number<uint64_t>(locator, 8), 56);
      if (!large.starts_with("PK\x06\x06")) broken("its large end record is missing");
      entries = number<uint64_t>(large, 32);
      size = number<uint64_t>(large, 40);
      begin = number<uint64_t>(large, 48);
    }
    if (size > limits_.directory_bytes) broken(fmt::format("its directory has {} bytes", size));
    const std::string directory = bytes(begin, size);
    size_t at = 0;
    for (uint64_t i = 0; i < entries; ++i) at = read_entry(directory, at);
  }

  /// Reads one entry of the directory; returns the position of the next one.
  size_t read_entry(const std::string& directory, size_t at) {
    constexpr size_t kFixed = 46;
    if (directory.size() < kFixed || at > directory.size() - kFixed || directory.compare(at, 4, "PK\x01\x02", 4) != 0) {
      broken("its directory is damaged");
    }
    const auto method = number<uint16_t>(directory, at + 10);
    uint64_t stored = number<uint32_t>(directory, at + 20), size = number<uint32_t>(directory, at + 24),
             header = number<uint32_t>(directory, at + 42);
    const size_t name_bytes = number<uint16_t>(directory, at + 28), extra_bytes = number<uint16_t>(directory, at + 30),
                 comment_bytes = number<uint16_t>(directory, at + 32);
    if (name_bytes + extra_bytes + comment_bytes > directory.size() - at - kFixed) broken("its directory is damaged");
    const std::string name = directory.substr(at + kFixed, name_bytes);
    read_large_sizes(directory.substr(at + kFixed + name_bytes, extra_bytes), size, stored, header);
    if (method != 0 || stored != size) broken("'" + name + "' is compressed, which torch.save does not do");
    const std::string local = bytes(header, 30);
    if (!local.starts_with("PK\x03\x04")) broken("'" + name + "' is not where the directory says");
    const uint64_t data = header + 30 + number<uint16_t>(local, 26) + number<uint16_t>(local, 28);
    if (data > length_ || size > length_ - data) broken("'" + name + "' is cut off");
    const size_t folder = name.find('/');
    files_[folder == std::string::npos ? name : name.substr(folder + 1)] = {offset_ + data, size};
    return at + kFixed + name_bytes + extra_bytes + comment_bytes;
  }

  /// Sizes of 4 GiB and more are in an extra field, in this order; it only has those that do not fit.
  void read_large_sizes(const std::string& extra, uint64_t& size, uint64_t& stored, uint64_t& header) const {
    for (size_t at = 0; at + 4 <= extra.size();) {
      const auto id = number<uint16_t>(extra, at);
      const size_t bytes = number<uint16_t>(extra, at + 2);
      if (bytes > extra.size() - at - 4) broken("its directory is damaged");
      size_t field = at + 4;
      for (uint64_t* value : {&size, &stored, &header}) {
        if (id != 1 || *value != 0xffffffff) continue;
        if (field + 8 > at + 4 + bytes) broken("its directory is damaged");
        *value = number<uint64_t>(extra, field);
        field += 8;
      }
      at += 4 + bytes;
    }
  }

  const FileBytes& file_;
  uint64_t offset_, length_;
  ArchiveLimits limits_;
  std::map<std::string, ArchiveFile> files_;
};

constexpr std::array<std::pair<std::string_view, DType>, 4> kStorages = {{{"torch.FloatStorage", DType::kF32},
                                                                          {"torch.BFloat16Storage", DType::kBF16},
                                                                          {"torch.HalfStorage", DType::kF16},
                                                                          {"torch.DoubleStorage", DType::kF64}}};

const std::set<std::string>& tensor_names() {
  static const std::set<std::string> names = {"torch._utils._rebuild_tensor_v2",
                                              "torch._utils._rebuild_parameter",
                                              "collections.OrderedDict",
                                              "torch.FloatStorage",
                                              "torch.BFloat16Storage",
                                              "torch.HalfStorage",
                                              "torch.DoubleStorage",
                                              "torch.LongStorage",
                                              "torch.IntStorage",
                                              "torch.ByteStorage",
                                              "torch.BoolStorage"};
  return names;
}

std::vector<int64_t> sizes_of(const Archive& archive, const PickleValue& tuple) {
  std::vector<int64_t> sizes;
  if (!tuple.is(PickleValue::Kind::kTuple)) archive.broken("the tensor's sizes are not a tuple");
  for (const PickleValue* item : tuple.items) {
    if (!item->is(PickleValue::Kind::kInteger) || item->integer < 0 || item->integer > kMostElements) {
      archive.broken("the tensor's sizes are not sizes");
    }
    sizes.push_back(item->integer);
  }
  return sizes;
}

/// Number of elements from the first to the end of the last that shape and strides reach; rejects overflow.
int64_t reach(const Archive& archive, const SavedTensor& tensor) {
  int64_t last = 0, numel = 1;
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    const int64_t size = tensor.shape[i], stride = tensor.strides[i];
    if (size == 0) return 0;
    if (numel > kMostElements / size || (size > 1 && stride > (kMostElements - last) / (size - 1))) {
      archive.broken("the tensor is larger than any file");
    }
    numel *= size;
    last += (size - 1) * stride;
  }
  return last + 1;
}

}  // namespace

int64_t SavedTensor::numel() const {
  int64_t n = 1;
  for (int64_t size : shape) n *= size;
  return n;
}

bool SavedTensor::contiguous() const {
  int64_t expected = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] != 1 && strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

namespace {

/// The tensor that a value of the archive's pickle describes.
SavedTensor tensor_of(const Archive& archive, const PickleValue& value, const std::string& name) {
  using Kind = PickleValue::Kind;
  const PickleValue* call = &value;
  // A parameter is a tensor and a flag whether it is trained.
  if (call->is_object("torch._utils._rebuild_parameter") && !call->arguments->items.empty()) {
    call = call->arguments->items.front();
  }
  const bool tensor_call = call->is_object("torch._utils._rebuild_tensor_v2") && call->arguments->items.size() >= 4;
  const std::vector<const PickleValue*>& arguments = tensor_call ? call->arguments->items : call->items;
  if (!tensor_call || !arguments[0]->is(Kind::kPersistent) || !arguments[1]->is(Kind::kInteger)) {
    archive.broken(name.empty() ? "it does not contain exactly one tensor" : fmt::format("'{}' is not a tensor", name));
  }
  const PickleValue& storage = *arguments[0]->items.front();
  if (!storage.is(Kind::kTuple) || storage.items.size() < 5 || !storage.items[1]->is(Kind::kGlobal) ||
      !storage.items[2]->is(Kind::kText)) {
    archive.broken("its tensor has no storage");
  }
  const auto known = std::find_if(kStorages.begin(), kStorages.end(),
                                  [&](const auto& pair) { return pair.first == storage.items[1]->text; });
  if (known == kStorages.end()) {
    throw UserError(fmt::format("tensors of the type {} are not supported", storage.items[1]->text), archive.where(),
                    "save weights in float32, bfloat16 or float16");
  }
  SavedTensor tensor;
  tensor.dtype = known->second;
  tensor.shape = sizes_of(archive, *arguments[2]);
  tensor.strides = sizes_of(archive, *arguments[3]);
  if (tensor.shape.size() != tensor.strides.size()) archive.broken("its tensor has other strides than sizes");
  const ArchiveFile& data = archive.at("data/" + std::string(storage.items[2]->text));
  const int64_t first = arguments[1]->integer, count = reach(archive, tensor);
  const auto elements = static_cast<int64_t>(data.bytes / size_of(tensor.dtype));
  // Rejects broadcast tensors with more elements than are stored: no checkpoint has them.
  if (first < 0 || first > elements || std::max(count, tensor.numel()) > elements - first) {
    archive.broken(
        fmt::format("its tensor needs {} elements, there are {}", std::max(count, tensor.numel()), elements - first));
  }
  tensor.begin = data.begin + static_cast<uint64_t>(first) * size_of(tensor.dtype);
  return tensor;
}

template <class T>
void widen(const std::byte* elements, float* destination, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, elements + static_cast<size_t>(i) * sizeof(T), sizeof(T));
    destination[i] = static_cast<float>(value);
  }
}

}  // namespace

SavedTensor find_saved_tensor(const FileBytes& file, uint64_t offset, uint64_t length) {
  const Archive archive(file, offset, length, kOneTensor);
  const Pickle pickle = archive.pickle(tensor_names());
  return tensor_of(archive, pickle.root(), "");
}

bool is_saved_archive(const FileBytes& file) { return file.size() >= 4 && file.read(0, 4) == "PK\x03\x04"; }

std::vector<std::pair<std::string, SavedTensor>> find_saved_tensors(const FileBytes& file) {
  using Kind = PickleValue::Kind;
  constexpr size_t kLongestName = 4096;
  const Archive archive(file, 0, file.size(), kManyTensors);
  const Pickle pickle = archive.pickle(tensor_names());
  const PickleValue& root = pickle.root();
  const bool ordered = root.is_object("collections.OrderedDict") && root.state != nullptr;
  const PickleValue& items = ordered ? *root.state : root;
  if (!items.is(Kind::kDictionary)) archive.broken("it does not contain a dictionary of tensors");
  std::vector<std::pair<std::string, SavedTensor>> tensors;
  std::set<std::string> names;
  for (size_t i = 0; i + 1 < items.items.size(); i += 2) {
    const PickleValue& key = *items.items[i];
    if (!key.is(Kind::kText) || key.text.size() > kLongestName) archive.broken("the name of a tensor is not a text");
    const std::string name(key.text);
    if (!names.insert(name).second) archive.broken(fmt::format("'{}' is there twice", name));
    tensors.emplace_back(name, tensor_of(archive, *items.items[i + 1], name));
  }
  return tensors;
}

std::vector<std::byte> read_saved_tensor(const FileBytes& file, const SavedTensor& tensor) {
  const size_t element = size_of(tensor.dtype);
  std::vector<std::byte> result(static_cast<size_t>(tensor.numel()) * element);
  if (result.empty()) return result;
  if (tensor.contiguous()) {
    file.read(tensor.begin, result.data(), result.size());
    return result;
  }
  int64_t reached = 1;
  for (size_t i = 0; i < tensor.shape.size(); ++i) reached += (tensor.shape[i] - 1) * tensor.strides[i];
  std::vector<std::byte> storage(static_cast<size_t>(reached) * element);
  file.read(tensor.begin, storage.data(), storage.size());
  std::vector<int64_t> index(tensor.shape.size(), 0);
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    int64_t from = 0;
    for (size_t d = 0; d < index.size(); ++d) from += index[d] * tensor.strides[d];
    std::memcpy(result.data() + static_cast<size_t>(i) * element, storage.data() + static_cast<size_t>(from) * element,
                element);
    for (size_t d = index.size(); d-- > 0 && ++index[d] == tensor.shape[d];) index[d] = 0;
  }
  return result;
}

void read_saved_floats(const FileBytes& file, const SavedTensor& tensor, int64_t first, float* destination,
                       int64_t count) {
  const size_t element = size_of(tensor.dtype);
  std::vector<std::byte> elements;
  const std::byte* from = nullptr;
  if (tensor.contiguous()) {
    elements.resize(static_cast<size_t>(count) * element);
    file.read(tensor.begin + static_cast<uint64_t>(first) * element, elements.data(), elements.size());
    from = elements.data();
  } else {
    elements = read_saved_tensor(file, tensor);
    from = elements.data() + static_cast<size_t>(first) * element;
  }
  switch (tensor.dtype) {
    case DType::kBF16:
      return widen<BFloat16>(from, destination, count);
    case DType::kF16:
      return widen<Float16>(from, destination, count);
    case DType::kF64:
      return widen<double>(from, destination, count);
    default:
      return widen<float>(from, destination, count);
  }
}

}  // namespace hone
