#include "data/parquet_reader.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>

#include "core/error.h"
#include "core/json.h"
#include "core/program.h"
#include "data/parquet_module.h"

namespace hone {

namespace {

namespace fs = std::filesystem;

constexpr const char* kModule = "hone_parquet.so";
constexpr const char* kOtherwise =
    "or write the data as JSONL (in Python: pandas.read_parquet(f).to_json(g, "
    "orient='records', lines=True))";

/// Loads the module once; it stays loaded.
const HoneParquetApi& module_for(const std::string& file) {
  const fs::path path = module_path(kModule);
  if (!fs::exists(path)) {
    throw UserError("this program was built without Parquet", file,
                    fmt::format("run `make parquet` in its build tree, {}", kOtherwise));
  }
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  const auto entry = library ? reinterpret_cast<HoneParquetEntry>(dlsym(library, kParquetEntryName)) : nullptr;
  if (!entry) {
    throw UserError(fmt::format("the Parquet module cannot be loaded: {}", dlerror()), path.string(),
                    fmt::format("build it again with `make parquet`, {}", kOtherwise));
  }
  if (entry()->version != kParquetApiVersion) {
    throw UserError("the Parquet module is of another version of this program", path.string(),
                    "build both again with `make parquet`");
  }
  return *entry();
}

class ParquetReader : public RowReader {
 public:
  explicit ParquetReader(const std::string& file) : file_(file), api_(module_for(file)) {
    HoneParquetError error{};
    handle_ = api_.open(file.c_str(), &error);
    if (!handle_) {
      throw UserError(fmt::format("the file cannot be read as Parquet: {}", error.text), file,
                      "it may be truncated, or not be a Parquet file");
    }
    std::error_code no_size;
    const auto size = fs::file_size(file, no_size);
    bytes_ = no_size ? 0 : static_cast<double>(size);
  }
  ~ParquetReader() override { api_.close(handle_); }
  ParquetReader(const ParquetReader&) = delete;
  ParquetReader& operator=(const ParquetReader&) = delete;

  bool next(RawRow& row) override {
    row = {};
    row.file = file_;
    row.syntax = RowSyntax::kParquet;
    row.line = rows_ + 1;
    HoneParquetError error{};
    const char* text = nullptr;
    size_t size = 0;
    const int result = api_.next(handle_, &text, &size, &error);
    if (result < 0) throw UserError(fmt::format("the row cannot be read: {}", error.text), row.where());
    if (result == 0) return false;
    if (size > kMaxRowBytes) {
      throw UserError(fmt::format("the row is longer than {} bytes", kMaxRowBytes), row.where());
    }
    row.text.assign(text, size);
    ++rows_;
    return true;
  }

  /// The bytes of the file, scaled by the fraction of rows read.
  int64_t bytes_read() const override {
    const int64_t all = api_.rows(handle_);
    return all == 0 ? 0 : static_cast<int64_t>(bytes_ * static_cast<double>(rows_) / static_cast<double>(all));
  }

 private:
  std::string file_;
  const HoneParquetApi& api_;
  void* handle_ = nullptr;
  int64_t rows_ = 0;
  double bytes_ = 0;
};

}  // namespace

std::unique_ptr<RowReader> open_parquet(const std::string& file) { return std::make_unique<ParquetReader>(file); }

bool has_parquet() { return fs::exists(module_path(kModule)); }

}  // namespace hone
