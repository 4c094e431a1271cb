#include "weights/gguf_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <span>

#include "core/base/error.h"
#include "weights/shard_writer.h"
#include "weights/stored_tensor.h"

namespace hone {

namespace {

constexpr int64_t kGgufPiece = int64_t{1} << 22;  // elements

}  // namespace

int64_t RowGrid::parameter_row(int64_t row) const {
  const int64_t c = row % count[2], b = row / count[2] % count[1], a = row / count[2] / count[1];
  return offset + a * stride[0] + b * stride[1] + c * stride[2];
}

std::optional<int64_t> RowGrid::grid_row(int64_t parameter_row) const {
  std::array<size_t, 3> axes = {0, 1, 2};
  std::sort(axes.begin(), axes.end(), [&](size_t a, size_t b) { return stride[a] > stride[b]; });
  int64_t left = parameter_row - offset;
  if (left < 0) return std::nullopt;
  std::array<int64_t, 3> at = {0, 0, 0};
  for (const size_t axis : axes) {
    if (stride[axis] == 0) continue;
    at[axis] = left / stride[axis];
    if (at[axis] >= count[axis]) return std::nullopt;
    left %= stride[axis];
  }
  if (left != 0) return std::nullopt;
  return (at[0] * count[1] + at[1]) * count[2] + at[2];
}

int64_t RowOrder::rows() const {
  int64_t rows = 0;
  for (const RowGrid& grid : grids_) rows += grid.rows();
  return rows;
}

int64_t RowOrder::parameter_row(int64_t row) const {
  size_t at = 0;
  for (; row >= grids_[at].rows(); ++at) row -= grids_[at].rows();
  return grids_[at].parameter_row(row);
}

std::optional<int64_t> RowOrder::row_of(int64_t parameter_row) const {
  int64_t begin = 0;
  for (const RowGrid& grid : grids_) {
    if (const auto row = grid.grid_row(parameter_row)) return begin + *row;
    begin += grid.rows();
  }
  return std::nullopt;
}

int64_t GgufTensor::columns() const { return row_elements(*parameter); }

int64_t row_elements(const Parameter& parameter) {
  return parameter.shape().rank() < 2 || parameter.spec().kind == ParameterKind::kBias ? 1 : parameter.shape()[-1];
}

ParameterFloats::ParameterFloats(const Checkpoint& checkpoint, const FileLayout& layout, const Parameter& parameter) {
  for (const FileTensor& tensor : layout) {
    std::vector<std::string> missing;
    std::optional<StoredTensor> stored = StoredTensor::find(checkpoint, tensor, missing);
    HONE_ASSERT(stored && missing.empty(), parameter.name());
    const MatrixOrder order = stored->order(tensor);
    sources_.push_back({std::move(*stored), tensor.offset, tensor.shape.numel(), order});
  }
}

void ParameterFloats::read(int64_t first, int64_t count, float* values) {
  for (const Source& source : sources_) {
    const int64_t begin = std::max(first, source.offset), end = std::min(first + count, source.offset + source.numel);
    if (begin >= end) continue;
    float* destination = values + (begin - first);
    if (source.order.transposed || source.order.interleaved || source.stored.format() == StoredTensor::Format::kMxfp4) {
      read_reordered(source, begin - source.offset, end - begin, destination);
    } else {
      source.stored.read(scratch_, begin - source.offset, end - begin, DType::kF32,
                         reinterpret_cast<std::byte*>(destination));
    }
  }
}

void ParameterFloats::read_reordered(const Source& source, int64_t first, int64_t count, float* values) {
  const int64_t numel = source.order.numel();
  while (count > 0) {
    const int64_t begin = first / numel * numel, part = std::min(count, begin + numel - first);
    if (held_ != source.offset + begin) {
      matrix_.resize(static_cast<size_t>(numel));
      rows_.resize(static_cast<size_t>(numel));
      source.stored.read(scratch_, begin, numel, DType::kF32, reinterpret_cast<std::byte*>(matrix_.data()));
      source.order.rows_from_file(matrix_.data(), 0, source.order.out, rows_.data());
      held_ = source.offset + begin;
    }
    std::copy_n(rows_.begin() + (first - begin), part, values);
    first += part, count -= part, values += part;
  }
}

GgufType gguf_type_of(const GgufTensor& tensor, GgufType type) {
  if (tensor.exact) return GgufType::kF32;
  return tensor.shape.back() % gguf_format(type).values == 0 ? type : GgufType::kF16;
}

namespace {

/// Calls use(row, parameter row, rows) for runs of rows [begin, end) that follow one another in the parameter.
template <class Use>
void for_runs(const RowOrder& order, int64_t begin, int64_t end, const Use& use) {
  for (int64_t row = begin; row < end;) {
    const int64_t from = order.parameter_row(row);
    int64_t next = row + 1;
    while (next < end && order.parameter_row(next) == from + (next - row)) ++next;
    use(row, from, next - row);
    row = next;
  }
}

/// Matrices of a tensor in the file's form, and back.
class FileForm {
 public:
  explicit FileForm(const GgufTensor& tensor)
      : tensor_(tensor),
        columns_(tensor.columns()),
        transposition_(FileOrder::kTransposed, {std::max<int64_t>(tensor.transposed, 1), tensor.columns()}) {}

  /// Rows that only together can be brought into the form: more than one where it is transposed.
  int64_t rows_together() const { return std::max<int64_t>(tensor_.transposed, 1); }
  bool reorders() const { return tensor_.transposed > 0 || tensor_.column_order; }

  /// Whole such runs of rows from the parameter, in the tensor's order.
  void to_file(std::vector<float>& values) {
    change(values,
           [&](float value) { return tensor_.values == GgufValues::kPlusOne ? value + 1.0f : -std::exp(value); });
    if (!reorders()) return;
    each_run(values, [&](const float* from, float* to) {
      if (tensor_.transposed > 0) return transposition_.to_file(from, to);
      for (int64_t i = 0; i < columns_; ++i) to[i] = from[tensor_.column_order->parameter_row(i)];
    });
  }
  void from_file(std::vector<float>& values) {
    change(values,
           [&](float value) { return tensor_.values == GgufValues::kPlusOne ? value - 1.0f : std::log(-value); });
    if (!reorders()) return;
    each_run(values, [&](const float* from, float* to) {
      if (tensor_.transposed > 0) return transposition_.rows_from_file(from, 0, tensor_.transposed, to);
      for (int64_t i = 0; i < columns_; ++i) to[tensor_.column_order->parameter_row(i)] = from[i];
    });
  }

 private:
  template <class Change>
  void change(std::vector<float>& values, const Change& changed) const {
    if (tensor_.values == GgufValues::kSame) return;
    for (float& value : values) value = changed(value);
  }
  template <class Reorder>
  void each_run(std::vector<float>& values, const Reorder& reorder) {
    reordered_.resize(values.size());
    const auto run = static_cast<size_t>(rows_together() * columns_);
    for (size_t at = 0; at < values.size(); at += run) reorder(values.data() + at, reordered_.data() + at);
    values.swap(reordered_);
  }

  const GgufTensor& tensor_;
  int64_t columns_;
  MatrixOrder transposition_;
  std::vector<float> reordered_;
};

}  // namespace

void write_gguf_tensor(GgufWriter& writer, const GgufTensor& tensor, const Checkpoint& checkpoint,
                       const FileLayout& layout) {
  ParameterFloats parameter(checkpoint, layout, *tensor.parameter);
  const int64_t columns = tensor.columns(), rows = tensor.rows.rows();
  FileForm form(tensor);
  // A vector is one row of the file.
  const int64_t together =
      columns == 1 ? rows : form.rows_together() * std::max<int64_t>(1, kGgufPiece / columns / form.rows_together());
  std::vector<float> values;
  for (int64_t begin = 0; begin < rows; begin += together) {
    const int64_t end = std::min(rows, begin + together);
    values.resize(static_cast<size_t>((end - begin) * columns));
    for_runs(tensor.rows, begin, end, [&](int64_t row, int64_t from, int64_t count) {
      parameter.read(from * columns, count * columns, values.data() + (row - begin) * columns);
    });
    form.to_file(values);
    writer.write_floats(values);
  }
}

namespace {

/// Makes a tensor of a model folder from those of a GGUF file that hold its rows.
class GgufSource final : public TensorSource {
 public:
  GgufSource(const GgufFile& file, std::vector<const GgufTensor*> tensors, const FileTensor& slice, DType dtype)
      : file_(file),
        slice_(slice),
        order_(slice.order, slice.shape),
        dtype_(dtype),
        columns_(tensors.front()->columns()) {
    for (const GgufTensor* tensor : tensors) {
      const GgufEntry* entry = file.find(tensor->name);
      HONE_ASSERT(entry != nullptr, tensor->name);
      parts_.push_back({entry, tensor});
    }
  }

  int64_t unit() const override { return reorders() ? order_.numel() : 1; }
  std::vector<StateRange> state_of(Slice) const override { return {}; }
  void make(Slice elements, StateReader&, const PutBytes& put) const override {
    const int64_t together = reorders() ? order_.numel() : kGgufPiece;
    std::vector<float> values, turned;
    HeldRows held;
    for (int64_t begin = elements.begin; begin < elements.end(); begin += together) {
      const int64_t count = std::min(together, elements.end() - begin);
      values.resize(static_cast<size_t>(count));
      read(slice_.offset + begin, count, values.data(), held);
      const std::vector<float>* made = &values;
      if (reorders()) {
        turned.resize(values.size());
        order_.to_file(values.data(), turned.data());
        made = &turned;
      }
      put_converted(dtype_, reinterpret_cast<const std::byte*>(made->data()), DType::kF32, count, put);
    }
  }

 private:
  struct Part {
    const GgufEntry* entry;
    const GgufTensor* tensor;
  };
  /// Rows of a tensor that are brought from the file's form together.
  struct HeldRows {
    const GgufEntry* entry = nullptr;
    int64_t begin = -1;
    std::vector<float> values;
  };

  bool reorders() const { return order_.transposed || order_.interleaved; }

  /// Elements [first, first + count) of the parameter.
  void read(int64_t first, int64_t count, float* values, HeldRows& held) const {
    while (count > 0) {
      const int64_t row = first / columns_, column = first % columns_;
      const auto part = std::find_if(parts_.begin(), parts_.end(),
                                     [&](const Part& p) { return p.tensor->rows.row_of(row).has_value(); });
      HONE_ASSERT(part != parts_.end(), slice_.name);
      const RowOrder& rows = part->tensor->rows;
      const int64_t at = *rows.row_of(row), wanted = (column + count + columns_ - 1) / columns_;
      int64_t run = 1;
      while (run < wanted && rows.row_of(row + run) == at + run) ++run;
      const int64_t read = read_rows(*part, at, column, std::min(count, run * columns_ - column), values, held);
      first += read, count -= read, values += read;
    }
  }

  /// At most `count` elements from column `column` of row `row` on; returns how many.
  int64_t read_rows(const Part& part, int64_t row, int64_t column, int64_t count, float* values, HeldRows& held) const {
    FileForm form(*part.tensor);
    if (!form.reorders() && part.tensor->values == GgufValues::kSame) {
      file_.read_floats(*part.entry, row * columns_ + column, count, values);
      return count;
    }
    const int64_t together = form.rows_together(), begin = row / together * together;
    if (held.entry != part.entry || held.begin != begin) {
      held.values.resize(static_cast<size_t>(together * columns_));
      file_.read_floats(*part.entry, begin * columns_, together * columns_, held.values.data());
      form.from_file(held.values);
      held.entry = part.entry, held.begin = begin;
    }
    const int64_t offset = (row - begin) * columns_ + column, left = std::min(count, together * columns_ - offset);
    std::copy_n(held.values.begin() + offset, left, values);
    return left;
  }

  const GgufFile& file_;
  FileTensor slice_;
  MatrixOrder order_;
  DType dtype_;
  int64_t columns_;
  std::vector<Part> parts_;
};

}  // namespace

std::vector<TensorFile> files_of_gguf(const GgufFile& file, const std::vector<GgufTensor>& tensors,
                                      const ParameterStore& store, DType dtype, int64_t max_shard_size) {
  std::map<const Parameter*, std::vector<const GgufTensor*>> of_parameter;
  for (const GgufTensor& tensor : tensors) of_parameter[tensor.parameter].push_back(&tensor);
  std::vector<SourcedTensor> sourced;
  std::vector<SafetensorsWriter::Announced> announced;
  for (SavedSlice& slice : saved_slices(store, nullptr, nullptr, dtype)) {
    const auto found = of_parameter.find(slice.parameter);
    HONE_ASSERT(found != of_parameter.end(), slice.announced.name);
    announced.push_back(slice.announced);
    sourced.push_back(
        {slice.announced, std::make_shared<GgufSource>(file, found->second, slice.slice, slice.announced.dtype)});
  }
  std::vector<TensorFile> files;
  for (const ShardRange& shard : plan_shards(announced, max_shard_size)) {
    files.push_back(
        {shard.name,
         {sourced.begin() + static_cast<int64_t>(shard.begin), sourced.begin() + static_cast<int64_t>(shard.end)}});
  }
  return files;
}

}  // namespace hone
