// safetensors files: u64 header length, JSON header {name: {dtype, shape, data_offsets}}, tensor bytes.
// Format: https://github.com/huggingface/safetensors
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/file_bytes.h"
#include "core/json_fwd.h"
#include "core/tensor.h"
#include "weights/manifest.h"

namespace hone {

/// One tensor of a file.
struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::kF32;
  /// dtype is kU8, and the bytes are codes of float8_e4m3fn (OCP OFP8), which tensors in memory never are.
  bool float8_e4m3 = false;
  std::vector<int64_t> shape;  ///< any rank
  uint64_t begin = 0;          ///< byte offset in the file
  uint64_t bytes = 0;

  int64_t numel() const;
  std::string shape_text() const;
  /// "bfloat16", "float8_e4m3fn", …
  std::string_view dtype_name() const { return float8_e4m3 ? "float8_e4m3fn" : name_of(dtype); }
};

/// Reads one file. Everything in the header is checked before it is used: lengths, dtypes, shapes, bounds, overlaps,
/// gaps, repeated names; a UserError names the file and the tensor.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(std::filesystem::path path);

  const std::filesystem::path& path() const { return file_.path(); }
  /// In the order of their bytes.
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// Null if the file has no such tensor.
  const SafetensorsEntry* find(const std::string& name) const;
  /// As find; UserError if it is missing.
  const SafetensorsEntry& at(const std::string& name) const;

  /// Bytes [offset, offset + count) of a tensor. Thread-safe.
  void read(const SafetensorsEntry& entry, uint64_t offset, void* destination, uint64_t count) const;
  /// Elements [first, first + count) of a floating-point tensor (f64, f32, f16, bf16) as float32. Thread-safe.
  void read_floats(const SafetensorsEntry& entry, int64_t first, float* destination, int64_t count) const;
  /// Asks the system to read bytes [offset, offset + count) of a tensor beforehand. Thread-safe.
  void prefetch(const SafetensorsEntry& entry, uint64_t offset, uint64_t count) const;
  std::vector<float> read_floats(const std::string& name) const;
  std::vector<int64_t> read_integers(const std::string& name) const;

  /// From now on `ledger`, which outlives this file, is told what is read; null: nobody is.
  void record_reads(ReadLedger* ledger) { ledger_ = ledger; }

 private:
  void parse();
  SafetensorsEntry parse_entry(const std::string& name, const Json& value, uint64_t data_begin,
                               uint64_t data_bytes) const;
  [[noreturn]] void broken(const std::string& what) const;

  FileBytes file_;
  ReadLedger* ledger_ = nullptr;
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, size_t> by_name_;
  std::map<std::string, std::string> metadata_;
};

/// Writes one file under a temporary name, one tensor after another, in the order and with the sizes announced.
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

  /// Opens a temporary file beside `path` and writes the header. UserError if the folder is not writable.
  SafetensorsWriter(std::filesystem::path path, std::vector<Announced> tensors,
                    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  /// Appends bytes of the announced tensors.
  void write(const void* data, uint64_t bytes);
  /// Appends float32 values of the current tensor, converted to its announced dtype (float32, bfloat16, float16).
  void write_floats(DType dtype, const float* values, int64_t count);
  /// Syncs, re-opens and checks the header, and renames to the final name. The checksum of the file.
  FileChecksum finish();

 private:
  /// The disk begins with what has been written while the next tensors are made, so that finish() waits for little.
  void start_writing_back(uint64_t bytes);

  std::filesystem::path path_, temporary_;
  std::vector<Announced> tensors_;
  int descriptor_ = -1;
  uint64_t written_ = 0, announced_bytes_ = 0;
  uint64_t not_started_ = 0;  // bytes that the disk has not been told to write
  FileChecksum checksum_;
};

/// The beginning of a file of these tensors, which follow without gaps: the length of the header and the header, padded
/// so that tensor bytes start at a multiple of 8.
std::string safetensors_header(std::span<const SafetensorsWriter::Announced> tensors,
                               const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

/// "F32", "BF16", … of the format.
std::string_view safetensors_name(DType dtype);

}  // namespace hone
