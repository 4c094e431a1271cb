#include "weights/tensor_file.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "core/base/checksum.h"
#include "core/base/error.h"
#include "kernels/cpu/row_math/row_math.h"

namespace hone {

namespace {

/// Elements that are converted at once.
constexpr int64_t kConverted = int64_t{1} << 20;
/// What all ranks hold is cut at multiples of so many elements.
constexpr int64_t kDealt = int64_t{1} << 20;
constexpr int64_t kLargestPart = int64_t{64} << 20;  ///< bytes
/// Bytes that are checksummed and written while they are in the cache.
constexpr size_t kWrittenAtOnce = size_t{1} << 20;
/// Threads of a rank that write: each has two pinned buffers of 16 MiB on a GPU.
constexpr int kThreads = 4;

class RunSource : public TensorSource {
 public:
  RunSource(DType dtype, const StateRange& state, std::string finite)
      : dtype_(dtype), state_(state), finite_(std::move(finite)) {}

  std::vector<StateRange> state_of(Slice elements) const override {
    return {{state_.parameter, state_.part, {state_.elements.begin + elements.begin, elements.count}}};
  }
  void make(Slice elements, StateReader& reader, const PutBytes& put) const override {
    const DType from = state_tensor(*state_.parameter, state_.part).dtype;
    reader.read(*state_.parameter, state_.part, state_.elements.begin + elements.begin, elements.count,
                [&](const std::byte* values, int64_t count) {
                  if (!finite_.empty()) require_finite(finite_, from, values, count);
                  put_converted(dtype_, values, from, count, put);
                });
  }

 private:
  DType dtype_;
  StateRange state_;
  std::string finite_;
};

}  // namespace

std::vector<SafetensorsWriter::Announced> TensorFile::announced() const {
  std::vector<SafetensorsWriter::Announced> all;
  for (const SourcedTensor& tensor : tensors) all.push_back(tensor.announced);
  return all;
}

SourcedTensor run_of(SafetensorsWriter::Announced announced, const StateRange& state, std::string finite) {
  HONE_ASSERT(announced.numel() == state.elements.count, announced.name);
  auto source = std::make_shared<const RunSource>(announced.dtype, state, std::move(finite));
  return {std::move(announced), std::move(source)};
}

void put_converted(DType to, const std::byte* elements, DType from, int64_t count, const PutBytes& put) {
  if (to == from) return put({elements, static_cast<size_t>(count) * size_of(from)});
  std::vector<float> widened;
  std::vector<uint16_t> narrowed;
  for (int64_t begin = 0; begin < count; begin += kConverted) {
    const int64_t n = std::min(kConverted, count - begin);
    const auto size = static_cast<size_t>(n);
    const float* values = reinterpret_cast<const float*>(elements) + begin;
    if (from == DType::kBF16) {
      widened.resize(size);
      row_math().widen(reinterpret_cast<const BFloat16*>(elements) + begin, widened.data(), n);
      values = widened.data();
    } else {
      HONE_ASSERT(from == DType::kF32);
    }
    if (to == DType::kF32) {
      put(std::as_bytes(std::span(values, size)));
      continue;
    }
    narrowed.resize(size);
    if (to == DType::kBF16) {
      row_math().narrow(values, reinterpret_cast<BFloat16*>(narrowed.data()), n);
    } else {
      HONE_ASSERT(to == DType::kF16);
      for (size_t i = 0; i < size; ++i) narrowed[i] = Float16(values[i]).bits;
    }
    put(std::as_bytes(std::span(narrowed)));
  }
}

// Dealing.

namespace {

Slice held_by(const StateRange& range, int rank) {
  return state_slice(*range.parameter, range.part, rank).intersect(range.elements);
}

int64_t bytes_of(const StateRange& range, int64_t elements) {
  return elements * static_cast<int64_t>(size_of(state_tensor(*range.parameter, range.part).dtype));
}

bool is_sharded(const StateRange& range) { return is_sharded(*range.parameter, range.part); }

class Dealer {
 public:
  Dealer(std::span<const TensorFile> files, int ranks)
      : files_(files), ranks_(ranks), load_(static_cast<size_t>(ranks)) {}

  std::vector<FilePart> deal() {
    for (size_t file = 0; file < files_.size(); ++file) {
      for (size_t tensor = 0; tensor < files_[file].tensors.size(); ++tensor) give_to_holders(file, tensor);
    }
    deal_the_rest();
    std::vector<FilePart> cut;
    for (const FilePart& part : parts_) cut_part(part, cut);
    return cut;
  }

 private:
  const SourcedTensor& tensor_of(const FilePart& part) const { return files_[part.file].tensors[part.tensor]; }
  int64_t size_of_element(const FilePart& part) const {
    return static_cast<int64_t>(size_of(tensor_of(part).announced.dtype));
  }

  void give(FilePart part) {
    load_[static_cast<size_t>(part.writer)] += part.elements.count * size_of_element(part);
    if (!parts_.empty()) {
      FilePart& last = parts_.back();
      const bool joins = last.file == part.file && last.tensor == part.tensor && last.writer == part.writer &&
                         !last.travels && !part.travels && last.elements.end() == part.elements.begin;
      if (joins) {
        last.elements.count += part.elements.count;
        return;
      }
    }
    parts_.push_back(part);
  }

  void give_to_holders(size_t file, size_t tensor) {
    const SourcedTensor& sourced = files_[file].tensors[tensor];
    const TensorSource& source = *sourced.source;
    const int64_t numel = sourced.announced.numel();
    if (numel == 0) return;
    const Slice all{0, numel};
    const std::vector<StateRange> state = source.state_of(all);
    if (std::none_of(state.begin(), state.end(), [](const StateRange& range) { return is_sharded(range); })) {
      rest_.push_back({file, tensor, all});
      return;
    }
    if (source.unit() == 1) {
      const StateRange& range = state.front();
      HONE_ASSERT(state.size() == 1 && range.elements.count == numel, sourced.announced.name);
      for (int rank = 0; rank < ranks_; ++rank) {
        const Slice held = held_by(range, rank);
        if (held.count > 0) give({file, tensor, {held.begin - range.elements.begin, held.count}, rank});
      }
      return;
    }
    for (int64_t begin = 0; begin < numel; begin += source.unit()) {
      give_unit({file, tensor, {begin, source.unit()}}, source.state_of({begin, source.unit()}));
    }
  }

  /// To the rank that has most of its state.
  void give_unit(FilePart part, const std::vector<StateRange>& state) {
    int64_t all = 0, most = -1;
    for (const StateRange& range : state) all += bytes_of(range, range.elements.count);
    for (int rank = 0; rank < ranks_; ++rank) {
      int64_t held = 0;
      for (const StateRange& range : state) held += bytes_of(range, held_by(range, rank).count);
      if (held > most) {
        most = held;
        part.writer = rank;
      }
    }
    part.travels = most < all;
    give(part);
  }

  /// In order, to each rank until it has its share: a rank's parts of a file are few and long.
  void deal_the_rest() {
    int64_t all = 0;
    for (const int64_t load : load_) all += load;
    for (const FilePart& part : rest_) all += part.elements.count * size_of_element(part);
    const int64_t share = (all + ranks_ - 1) / ranks_;
    int writer = 0;
    for (const FilePart& whole : rest_) {
      const int64_t unit = tensor_of(whole).source->unit(), step = unit == 1 ? kDealt : unit;
      const int64_t step_bytes = step * size_of_element(whole);
      for (int64_t begin = 0; begin < whole.elements.count;) {
        while (writer + 1 < ranks_ && load_[static_cast<size_t>(writer)] >= share) ++writer;
        const int64_t left = std::max<int64_t>(share - load_[static_cast<size_t>(writer)], 1);
        const int64_t steps = writer + 1 == ranks_ ? whole.elements.count : (left + step_bytes - 1) / step_bytes;
        const int64_t count = std::min(whole.elements.count - begin, std::min(steps, whole.elements.count) * step);
        give({whole.file, whole.tensor, {begin, count}, writer});
        begin += count;
      }
    }
  }

  void cut_part(const FilePart& part, std::vector<FilePart>& cut) const {
    const int64_t unit = tensor_of(part).source->unit(), step = unit == 1 ? kDealt : unit;
    const int64_t most = std::max<int64_t>(kLargestPart / (step * size_of_element(part)), 1) * step;
    for (int64_t begin = 0; begin < part.elements.count; begin += most) {
      FilePart piece = part;
      piece.elements = {part.elements.begin + begin, std::min(most, part.elements.count - begin)};
      cut.push_back(piece);
    }
  }

  const std::span<const TensorFile> files_;
  const int ranks_;
  std::vector<int64_t> load_;  // bytes of each rank's parts
  std::vector<FilePart> parts_, rest_;
};

}  // namespace

std::vector<FilePart> deal(std::span<const TensorFile> files, int ranks) { return Dealer(files, ranks).deal(); }

// Writing.

PartWriter::PartWriter(std::filesystem::path directory, std::span<const TensorFile> files)
    : directory_(std::move(directory)), files_(files) {
  for (const TensorFile& file : files) open_.push_back(std::make_unique<OpenFile>(PlacedLayout(file.announced())));
}

void PartWriter::create_files() {
  for (size_t i = 0; i < files_.size(); ++i) {
    OpenFile& file = *open_[i];
    const std::filesystem::path path = directory_ / files_[i].name;
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
    std::call_once(file.opened, [&] { file.file.emplace(PlacedFile::create(path, file.layout, path)); });
    ledger_.add(files_[i].name, 0, std::as_bytes(std::span(file.layout.header())));
  }
}

PlacedFile& PartWriter::open(size_t file) {
  OpenFile& open = *open_[file];
  std::call_once(open.opened, [&] { open.file.emplace(PlacedFile::open(directory_ / files_[file].name)); });
  return *open.file;
}

void PartWriter::write(const FilePart& part, StateReader& reader) {
  const TensorFile& file = files_[part.file];
  const SourcedTensor& tensor = file.tensors[part.tensor];
  const uint64_t element = size_of(tensor.announced.dtype),
                 begin = open_[part.file]->layout.offset(part.tensor) +
                         static_cast<uint64_t>(part.elements.begin) * element;
  const uint64_t end = begin + static_cast<uint64_t>(part.elements.count) * element;
  PlacedFile& to = open(part.file);
  uint64_t at = begin;
  tensor.source->make(part.elements, reader, [&](std::span<const std::byte> bytes) {
    HONE_ASSERT(at + bytes.size() <= end, tensor.announced.name);
    while (!bytes.empty()) {
      const auto some = bytes.first(std::min(kWrittenAtOnce, bytes.size()));
      ledger_.add(file.name, at, some);
      to.write(at, some);
      at += some.size();
      bytes = bytes.subspan(some.size());
    }
  });
  HONE_ASSERT(at == end, tensor.announced.name);
  to.start_writing_back(begin, end - begin);
}

void PartWriter::sync() {
  for (const auto& open : open_) {
    if (open->file) open->file->sync();
  }
}

FileChecksums PartWriter::checksums() const {
  FileChecksums checksums;
  for (size_t i = 0; i < files_.size(); ++i) {
    const std::string& name = files_[i].name;
    const uint64_t bytes = open_[i]->layout.bytes();
    const std::optional<uint32_t> crc = ledger_.whole(name, bytes);
    HONE_ASSERT(crc.has_value(), name + " was not written as a whole");
    checksums[name] = {bytes, *crc};
  }
  return checksums;
}

void for_each_part(std::span<const FilePart> parts, ThreadPool* pool,
                   const std::function<void(const FilePart& part, StateReader& reader)>& write) {
  std::atomic<size_t> next = 0;
  std::atomic<bool> failed = false;
  const auto work = [&] {
    LocalStateReader reader;
    try {
      for (size_t i = next++; i < parts.size() && !failed; i = next++) write(parts[i], reader);
    } catch (...) {
      failed = true;
      throw;
    }
  };
  const auto threads = static_cast<int64_t>(
      std::min<size_t>(parts.size(), static_cast<size_t>(pool ? std::min(pool->size(), kThreads) : 1)));
  if (threads <= 1) return work();
  pool->parallel_for(threads, [&](int64_t, int) { work(); });
}

void write_files(const std::filesystem::path& directory, std::span<const TensorFile> files, FileChecksums* checksums,
                 ThreadPool* pool) {
  PartWriter writer(directory, files);
  writer.create_files();
  try {
    for_each_part(deal(files, 1), pool, [&](const FilePart& part, StateReader& reader) { writer.write(part, reader); });
    writer.sync();
  } catch (...) {  // nothing takes them for whole files
    std::error_code ignored;
    for (const TensorFile& file : files) std::filesystem::remove(directory / file.name, ignored);
    throw;
  }
  if (!checksums) return;
  for (const auto& [name, checksum] : writer.checksums()) (*checksums)[name] = checksum;
}

void write_index(const std::filesystem::path& directory, std::span<const TensorFile> files) {
  std::vector<SafetensorsWriter::Announced> all;
  std::vector<ShardRange> shards;
  for (const TensorFile& file : files) {
    const size_t begin = all.size();
    for (const SourcedTensor& tensor : file.tensors) all.push_back(tensor.announced);
    shards.push_back({file.name, begin, all.size()});
  }
  write_index(directory, shards, all);
}

}  // namespace hone
