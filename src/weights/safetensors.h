// safetensors files: u64 header length, JSON header {name: {dtype, shape, data_offsets}}, tensor bytes.
// Format: https://github.com/huggingface/safetensors
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/base/tensor.h"
#include "core/files/file_bytes.h"
#include "core/text/json_fwd.h"
#include "weights/manifest.h"

namespace hone {

/// One tensor of a file.
struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::kF32;
  /// dtype is kU8, and the bytes are float8_e4m3fn codes (OCP OFP8), which tensors in memory never have.
  bool float8_e4m3 = false;
  std::vector<int64_t> shape;  ///< any rank
  uint64_t begin = 0;          ///< byte offset in the file
  uint64_t bytes = 0;

  int64_t numel() const;
  std::string shape_text() const;
  /// "bfloat16", "float8_e4m3fn", …
  std::string_view dtype_name() const { return float8_e4m3 ? "float8_e4m3fn" : name_of(dtype); }
};

/// Reads one file. The header is fully validated: lengths, dtypes, shapes, bounds, overlaps, gaps, repeated names.
/// UserError with the file and the tensor.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(std::filesystem::path path);

  const std::filesystem::path& path() const { return file_.path(); }
  /// In order of their bytes.
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// Null if the file does not have the tensor.
  const SafetensorsEntry* find(const std::string& name) const;
  /// As find(); UserError if it is missing.
  const SafetensorsEntry& at(const std::string& name) const;

  /// Bytes [offset, offset + count) of a tensor. Thread-safe.
  void read(const SafetensorsEntry& entry, uint64_t offset, void* destination, uint64_t count) const;
  /// Elements [first, first + count) of a floating-point tensor (f64, f32, f16, bf16) as float32. Thread-safe.
  void read_floats(const SafetensorsEntry& entry, int64_t first, float* destination, int64_t count) const;
  /// Starts reading ahead bytes [offset, offset + count) of a tensor. Thread-safe.
  void prefetch(const SafetensorsEntry& entry, uint64_t offset, uint64_t count) const;
  std::vector<float> read_floats(const std::string& name) const;
  std::vector<int64_t> read_integers(const std::string& name) const;

  /// UserError if the file was written to since it was opened. Thread-safe.
  void require_unchanged() const { file_.require_unchanged(); }
  /// Records later reads in `ledger`, which must outlive this file; null: records nothing.
  void record_reads(FileLedger* ledger) { ledger_ = ledger; }

 private:
  void parse();
  SafetensorsEntry parse_entry(const std::string& name, const Json& value, uint64_t data_begin,
                               uint64_t data_bytes) const;
  [[noreturn]] void broken(const std::string& what) const;

  FileBytes file_;
  FileLedger* ledger_ = nullptr;
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, size_t> by_name_;
  std::map<std::string, std::string> metadata_;
};

/// Writes one file under a temporary name: tensors one after another, in the order and with the sizes given at
/// construction.
class SafetensorsWriter {
 public:
  struct Announced {
    std::string name;
    DType dtype;
    std::vector<int64_t> shape;
    bool float8_e4m3 = false;  ///< as in SafetensorsEntry

    int64_t numel() const;
    int64_t bytes() const { return numel() * static_cast<int64_t>(size_of(dtype)); }
  };

  /// Opens a temporary file next to `path` and writes the header. UserError if the folder is not writable.
  SafetensorsWriter(std::filesystem::path path, std::vector<Announced> tensors,
                    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  /// Appends bytes of the announced tensors.
  void write(const void* data, uint64_t bytes);
  /// Appends float32 values of the current tensor, converted to its announced dtype (float32, bfloat16, float16).
  void write_floats(DType dtype, const float* values, int64_t count);
  /// Syncs, reopens and checks the header, and renames to the final name. Returns the file's checksum.
  FileChecksum finish();

 private:
  /// Starts writeback of written bytes while the next tensors are computed, so that finish() waits less.
  void start_writing_back(uint64_t bytes);

  std::filesystem::path path_, temporary_;
  std::vector<Announced> tensors_;
  int descriptor_ = -1;
  uint64_t written_ = 0, announced_bytes_ = 0;
  uint64_t not_started_ = 0;  // bytes whose writeback has not been started
  FileChecksum checksum_;
};

/// The length and the header of a file with these tensors, which follow without gaps; padded so that tensor bytes begin
/// at a multiple of 8.
std::string safetensors_header(std::span<const SafetensorsWriter::Announced> tensors,
                               const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

/// The format's name of a dtype: "F32", "BF16", …
std::string_view safetensors_name(DType dtype);

}  // namespace hone
