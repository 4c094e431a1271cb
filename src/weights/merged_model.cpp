#include "weights/merged_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <vector>

#include "core/base/checksum.h"
#include "core/base/error.h"
#include "weights/adapter.h"
#include "weights/merged_tensor.h"
#include "weights/shard_writer.h"

namespace hone {

namespace {

/// Target bytes of a piece, rounded to rows: large writes, but several pieces per thread.
constexpr int64_t kPieceBytes = int64_t{4} << 20;
/// Number of pieces to read ahead.
constexpr int64_t kAhead = 32;
/// Pieces that are written before the first of them is read back.
constexpr int64_t kLag = 32;

/// Rows of a tensor.
struct MergedPiece {
  size_t tensor = 0;
  int64_t first_row = 0, rows = 0;
  size_t shard = 0;
  uint32_t crc = 0;
  RowCheck found = {};
};

/// A file that is being written. Shared by threads.
struct Shard {
  ShardRange range;
  std::once_flag opened;
  std::unique_ptr<PlacedWriter> writer;
  size_t first_piece = 0, end_piece = 0;
  std::atomic<size_t> to_write{0}, to_check{0};  // numbers of pieces
  std::future<void> synced;
  std::future<FileChecksum> finished;
};

struct ThreadState {
  RowScratch merge;
  std::vector<std::byte> bytes;
};

class MergedModelWriter {
 public:
  MergedModelWriter(const std::filesystem::path& directory, const ParameterStore& store, const Checkpoint& base,
                    const CheckpointMap& map, const MergeSaveOptions& options)
      : directory_(directory), progress_(options.progress) {
    for (SavedSlice& slice : saved_slices(store, &base, &map, options.dtype)) {
      const PackedFormat* rounding = options.rounding ? options.rounding(*slice.parameter) : nullptr;
      tensors_.emplace_back(std::move(slice), base, rounding);
    }
    for (CarriedTensor& carried : carried_slices(base, map)) tensors_.emplace_back(std::move(carried));
    for (const MergedTensor& tensor : tensors_) announced_.push_back(tensor.announced());
    for (ShardRange& range : plan_shards(announced_, options.max_shard_size)) {
      Shard& shard = shards_.emplace_back();
      shard.range = std::move(range);
      cut(shard);
    }
    written_ = std::vector<std::atomic<bool>>(pieces_.size());
    checked_ = std::vector<std::atomic<bool>>(pieces_.size());
  }

  MergeReport run(ThreadPool& pool, FileChecksums* checksums) {
    states_.resize(static_cast<size_t>(pool.size()));
    const auto count = static_cast<int64_t>(pieces_.size());
    for (int64_t i = 0; i < std::min(kAhead, count); ++i) prefetch(i);
    pool.parallel_for(count, [&](int64_t i, int thread) {
      if (i + kAhead < count) prefetch(i + kAhead);
      write(i, thread);
      const int64_t earlier = i - kLag;
      if (earlier >= 0 && written_[static_cast<size_t>(earlier)].load()) check(earlier, thread);
    });
    std::vector<int64_t> left;
    for (int64_t i = 0; i < count; ++i) {
      if (!checked_[static_cast<size_t>(i)].load()) left.push_back(i);
    }
    pool.parallel_for(static_cast<int64_t>(left.size()),
                      [&](int64_t i, int thread) { check(left[static_cast<size_t>(i)], thread); });
    std::vector<ShardRange> ranges;
    for (Shard& shard : shards_) {
      if (shard.first_piece == shard.end_piece) finish_empty(shard);
      const FileChecksum checksum = shard.finished.get();
      if (checksums) (*checksums)[shard.range.name] = checksum;
      ranges.push_back(shard.range);
    }
    write_index(directory_, ranges, announced_);
    return report();
  }

 private:
  void cut(Shard& shard) {
    shard.first_piece = pieces_.size();
    for (size_t t = shard.range.begin; t < shard.range.end; ++t) {
      const MergedTensor& tensor = tensors_[t];
      const int64_t together = tensor.rows_together();
      const int64_t size =
          std::max<int64_t>(kPieceBytes / std::max<int64_t>(tensor.row_bytes() * together, 1), 1) * together;
      for (int64_t row = 0; row < tensor.rows(); row += size) {
        pieces_.push_back({t, row, std::min(size, tensor.rows() - row), shards_.size() - 1});
      }
    }
    shard.end_piece = pieces_.size();
    shard.to_write = shard.to_check = shard.end_piece - shard.first_piece;
  }

  void open(Shard& shard) {
    const auto own = std::span(announced_).subspan(shard.range.begin, shard.range.end - shard.range.begin);
    shard.writer = std::make_unique<PlacedWriter>(directory_ / shard.range.name,
                                                  std::vector<SafetensorsWriter::Announced>(own.begin(), own.end()));
  }

  void prefetch(int64_t i) const {
    const MergedPiece& piece = pieces_[static_cast<size_t>(i)];
    tensors_[piece.tensor].prefetch(piece.first_row, piece.rows);
  }

  std::span<std::byte> memory(const MergedPiece& piece, int thread) {
    std::vector<std::byte>& bytes = states_[static_cast<size_t>(thread)].bytes;
    const auto size = static_cast<size_t>(piece.rows * tensors_[piece.tensor].row_bytes());
    if (bytes.size() < size) bytes.resize(size);
    return std::span(bytes).first(size);
  }
  uint64_t offset(const MergedPiece& piece) const {
    return static_cast<uint64_t>(piece.first_row * tensors_[piece.tensor].row_bytes());
  }

  void write(int64_t i, int thread) {
    MergedPiece& piece = pieces_[static_cast<size_t>(i)];
    Shard& shard = shards_[piece.shard];
    std::call_once(shard.opened, [&] { open(shard); });
    const std::span<std::byte> bytes = memory(piece, thread);
    tensors_[piece.tensor].make(states_[static_cast<size_t>(thread)].merge, piece.first_row, piece.rows, bytes.data());
    piece.crc = crc32c(bytes);
    shard.writer->write(piece.tensor - shard.range.begin, offset(piece), bytes);
    if (progress_) {
      const std::lock_guard lock(mutex_);
      bytes_written_ += static_cast<int64_t>(bytes.size());
      progress_(bytes_written_);
    }
    // The rest is written back while pieces of this file are checked and pieces of the next are written.
    if (--shard.to_write == 0) shard.synced = std::async(std::launch::async, [&shard] { shard.writer->sync(); });
    written_[static_cast<size_t>(i)].store(true);  // last: finish() waits for `synced`
  }

  void check(int64_t i, int thread) {
    MergedPiece& piece = pieces_[static_cast<size_t>(i)];
    Shard& shard = shards_[piece.shard];
    const MergedTensor& tensor = tensors_[piece.tensor];
    const std::span<std::byte> bytes = memory(piece, thread);
    shard.writer->read(piece.tensor - shard.range.begin, offset(piece), bytes);
    if (const uint32_t crc = crc32c(bytes); crc != piece.crc) {
      throw Error(ExitCode::kCheckFailed,
                  fmt::format("'{}' has other bytes than were written (CRC-32C {:08x}, not {:08x})", tensor.name(), crc,
                              piece.crc),
                  (directory_ / shard.range.name).string(), "the output was removed; check the disk and the memory");
    }
    piece.found = tensor.check(states_[static_cast<size_t>(thread)].merge, piece.first_row, piece.rows, bytes.data());
    checked_[static_cast<size_t>(i)].store(true);
    if (--shard.to_check == 0)
      shard.finished = std::async(std::launch::async, [this, &shard] { return finish(shard); });
  }

  FileChecksum finish(Shard& shard) {
    shard.synced.get();
    uint32_t crc = 0;
    for (size_t i = shard.first_piece; i < shard.end_piece; ++i) {
      const MergedPiece& piece = pieces_[i];
      crc = join_crc32c(crc, piece.crc, static_cast<uint64_t>(piece.rows * tensors_[piece.tensor].row_bytes()));
    }
    const FileChecksum checksum = shard.writer->finish(crc);
    shard.writer.reset();
    return checksum;
  }

  /// Finishes a file whose tensors have no elements.
  void finish_empty(Shard& shard) {
    open(shard);
    shard.synced = std::async(std::launch::deferred, [&shard] { shard.writer->sync(); });
    shard.finished = std::async(std::launch::deferred, [this, &shard] { return finish(shard); });
  }

  MergeReport report() const {
    MergeReport report;
    double change = 0, rounding = 0;
    std::vector<int64_t> sampled(tensors_.size());
    for (const MergedPiece& piece : pieces_) {
      sampled[piece.tensor] += piece.found.rows;
      change += piece.found.change;
      rounding += piece.found.rounding;
    }
    for (size_t t = 0; t < tensors_.size(); ++t) {
      const MergedTensor& tensor = tensors_[t];
      report.bytes += tensor.announced().bytes();
      report.replaced += tensor.source() == MergedTensor::Source::kReplaced;
      if (tensor.source() != MergedTensor::Source::kMerged) continue;
      report.merged += tensor.adapted();
      report.rounded += tensor.rounds();
      HONE_ASSERT(sampled[t] == sampled_rows(tensor.rows()), tensor.name());
      report.rows += tensor.rows();
      report.sampled_rows += sampled[t];
      if (tensor.rows() == 0) continue;
      report.least_share =
          std::min(report.least_share, static_cast<double>(sampled[t]) / static_cast<double>(tensor.rows()));
    }
    report.tensors = static_cast<int64_t>(tensors_.size());
    report.files = static_cast<int64_t>(shards_.size());
    report.lost = change > 0 ? std::sqrt(rounding / change) : 0;
    RoundingError base;
    for (const ThreadState& state : states_) base += state.merge.base_error;
    report.base_change = base.relative();
    return report;
  }

  std::filesystem::path directory_;
  std::function<void(int64_t)> progress_;
  std::mutex mutex_;  // protects bytes_written_ and calls of progress_
  int64_t bytes_written_ = 0;
  std::vector<MergedTensor> tensors_;
  std::vector<SafetensorsWriter::Announced> announced_;
  std::vector<MergedPiece> pieces_;
  std::vector<std::atomic<bool>> written_, checked_;  // per piece
  std::vector<ThreadState> states_;
  std::deque<Shard> shards_;  // destroyed first: waits for their futures
};

}  // namespace

void load_adapter_values(const std::filesystem::path& directory, ParameterStore& store, const Checkpoint& base,
                         const CheckpointMap& map, ThreadPool& pool) {
  store.allocate_trainable_values(Device{});
  CheckpointMap whole;
  for (const auto& [parameter, layout] : map.layouts) {
    if (parameter->trainable()) whole.layouts.emplace(parameter, layout);
  }
  load_parameters(base, whole, store, pool);
  load_adapter(directory, store);
}

MergeReport save_merged(const std::filesystem::path& directory, const ParameterStore& store, const Checkpoint& base,
                        const CheckpointMap& map, ThreadPool& pool, const MergeSaveOptions& options) {
  return MergedModelWriter(directory, store, base, map, options).run(pool, options.checksums);
}

}  // namespace hone
