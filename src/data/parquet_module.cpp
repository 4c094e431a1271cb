// The Parquet module: reads rows of a Parquet file as JSON. A separate shared library (parquet_module.h).
#include "data/parquet_module.h"

#include <arrow/api.h>
#include <parquet/arrow/reader.h>
#include <parquet/file_reader.h>

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>

#include "core/json.h"

namespace hone {
namespace {

constexpr int kMaxDepth = 64;
constexpr int64_t kBatchRows = 1024;

void check(const arrow::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

template <class Value>
Value checked(arrow::Result<Value> result) {
  check(result.status());
  return std::move(result).ValueUnsafe();
}

Json value_at(const arrow::Array& array, int64_t i, int depth);

Json list_at(const arrow::Array& values, int64_t begin, int64_t length, int depth) {
  Json list = Json::array();
  for (int64_t k = begin; k < begin + length; ++k) list.push_back(value_at(values, k, depth));
  return list;
}

/// Omits null members: in Parquet every struct has the members of all others.
Json struct_at(const arrow::StructArray& array, int64_t i, int depth) {
  Json object = Json::object();
  for (int field = 0; field < array.num_fields(); ++field) {
    Json value = value_at(*array.field(field), i, depth);
    if (!value.is_null()) object[array.struct_type()->field(field)->name()] = std::move(value);
  }
  return object;
}

Json map_at(const arrow::MapArray& array, int64_t i, int depth) {
  Json object = Json::object();
  for (int64_t k = array.value_offset(i); k < array.value_offset(i) + array.value_length(i); ++k) {
    const Json key = value_at(*array.keys(), k, depth);
    object[key.is_string() ? key.get<std::string>() : key.dump()] = value_at(*array.items(), k, depth);
  }
  return object;
}

template <class ArrayType>
Json entry(const arrow::Array& array, int64_t i) {
  return static_cast<const ArrayType&>(array).Value(i);
}

template <class ArrayType>
Json text(const arrow::Array& array, int64_t i) {
  return std::string(static_cast<const ArrayType&>(array).GetView(i));
}

template <class ArrayType>
Json list(const arrow::Array& array, int64_t i, int depth) {
  const auto& typed = static_cast<const ArrayType&>(array);
  return list_at(*typed.values(), typed.value_offset(i), typed.value_length(i), depth);
}

Json value_at(const arrow::Array& array, int64_t i, int depth) {
  using arrow::Type;
  if (depth > kMaxDepth) throw std::runtime_error("the columns are nested too deep");
  if (array.IsNull(i)) return nullptr;
  switch (array.type_id()) {
    case Type::BOOL:
      return entry<arrow::BooleanArray>(array, i);
    case Type::INT8:
      return entry<arrow::Int8Array>(array, i);
    case Type::INT16:
      return entry<arrow::Int16Array>(array, i);
    case Type::INT32:
      return entry<arrow::Int32Array>(array, i);
    case Type::INT64:
      return entry<arrow::Int64Array>(array, i);
    case Type::UINT8:
      return entry<arrow::UInt8Array>(array, i);
    case Type::UINT16:
      return entry<arrow::UInt16Array>(array, i);
    case Type::UINT32:
      return entry<arrow::UInt32Array>(array, i);
    case Type::UINT64:
      return entry<arrow::UInt64Array>(array, i);
    case Type::FLOAT:
      return entry<arrow::FloatArray>(array, i);
    case Type::DOUBLE:
      return entry<arrow::DoubleArray>(array, i);
    case Type::STRING:
      return text<arrow::StringArray>(array, i);
    case Type::LARGE_STRING:
      return text<arrow::LargeStringArray>(array, i);
    case Type::STRING_VIEW:
      return text<arrow::StringViewArray>(array, i);
    case Type::LIST:
      return list<arrow::ListArray>(array, i, depth + 1);
    case Type::LARGE_LIST:
      return list<arrow::LargeListArray>(array, i, depth + 1);
    case Type::FIXED_SIZE_LIST:
      return list<arrow::FixedSizeListArray>(array, i, depth + 1);
    case Type::STRUCT:
      return struct_at(static_cast<const arrow::StructArray&>(array), i, depth + 1);
    case Type::MAP:
      return map_at(static_cast<const arrow::MapArray&>(array), i, depth + 1);
    case Type::DICTIONARY: {
      const auto& dictionary = static_cast<const arrow::DictionaryArray&>(array);
      return value_at(*dictionary.dictionary(), dictionary.GetValueIndex(i), depth + 1);
    }
    case Type::EXTENSION:
      return value_at(*static_cast<const arrow::ExtensionArray&>(array).storage(), i, depth + 1);
    case Type::BINARY:
    case Type::LARGE_BINARY:
    case Type::BINARY_VIEW:
    case Type::FIXED_SIZE_BINARY:
      return nullptr;  // binary data, for example images, are not text
    default:
      return checked(array.GetScalar(i))->ToString();
  }
}

class ParquetFile {
 public:
  explicit ParquetFile(const std::string& path) {
    parquet::arrow::FileReaderBuilder builder;
    check(builder.OpenFile(path));
    parquet::ArrowReaderProperties properties;
    properties.set_batch_size(kBatchRows);
    builder.properties(properties);
    reader_ = checked(builder.Build());
    rows_ = reader_->parquet_reader()->metadata()->num_rows();
    batches_ = checked(reader_->GetRecordBatchReader());
  }

  /// Reads the next row as JSON; returns false at the end.
  bool next(const char** row, size_t* size) {
    while (!batch_ || at_ == batch_->num_rows()) {
      check(batches_->ReadNext(&batch_));
      if (!batch_) return false;
      at_ = 0;
    }
    Json object = Json::object();
    for (int column = 0; column < batch_->num_columns(); ++column) {
      object[batch_->column_name(column)] = value_at(*batch_->column(column), at_, 0);
    }
    ++at_;
    text_ = object.dump();  // throws if a text is not UTF-8
    *row = text_.data();
    *size = text_.size();
    return true;
  }
  int64_t rows() const { return rows_; }

 private:
  std::unique_ptr<parquet::arrow::FileReader> reader_;
  std::shared_ptr<arrow::RecordBatchReader> batches_;
  std::shared_ptr<arrow::RecordBatch> batch_;
  int64_t at_ = 0, rows_ = 0;
  std::string text_;
};

void say(HoneParquetError* error, const char* text) { std::snprintf(error->text, sizeof error->text, "%s", text); }

void* open_file(const char* path, HoneParquetError* error) {
  try {
    return new ParquetFile(path);
  } catch (const std::exception& problem) {
    say(error, problem.what());
  }
  return nullptr;
}

int next_row(void* file, const char** row, size_t* size, HoneParquetError* error) {
  try {
    return static_cast<ParquetFile*>(file)->next(row, size) ? 1 : 0;
  } catch (const std::exception& problem) {
    say(error, problem.what());
  }
  return -1;
}

int64_t rows_of(void* file) { return static_cast<ParquetFile*>(file)->rows(); }

void close_file(void* file) { delete static_cast<ParquetFile*>(file); }

constexpr HoneParquetApi kApi = {kParquetApiVersion, open_file, next_row, rows_of, close_file};

}  // namespace
}  // namespace hone

extern "C" __attribute__((visibility("default"))) const hone::HoneParquetApi* hone_parquet_api() { return &hone::kApi; }
