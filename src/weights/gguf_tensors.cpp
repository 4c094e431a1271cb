#include "weights/gguf_tensors.h"

#include <fmt/format.h>

#include <algorithm>
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

/// Calls use(grid row, parameter row, rows) for runs of rows [begin, end) that follow one another in the parameter.
template <class Use>
void for_grid_runs(const RowGrid& grid, int64_t begin, int64_t end, const Use& use) {
  for (int64_t row = begin; row < end;) {
    const int64_t from = grid.parameter_row(row);
    int64_t next = row + 1;
    while (next < end && grid.parameter_row(next) == from + (next - row)) ++next;
    use(row, from, next - row);
    row = next;
  }
}

}  // namespace

void write_gguf_tensor(GgufWriter& writer, const GgufTensor& tensor, const Checkpoint& checkpoint,
                       const FileLayout& layout) {
  ParameterFloats parameter(checkpoint, layout, *tensor.parameter);
  const int64_t columns = tensor.columns(), rows = tensor.rows.rows();
  const int64_t matrix = tensor.rows.count[2];
  const MatrixOrder order(FileOrder::kTransposed, {matrix, columns});
  // A vector is one row of the file.
  const int64_t together = columns == 1        ? rows
                           : tensor.transposed ? matrix
                                               : std::max<int64_t>(1, kGgufPiece / columns);
  std::vector<float> values, turned;
  for (int64_t begin = 0; begin < rows; begin += together) {
    const int64_t end = std::min(rows, begin + together);
    values.resize(static_cast<size_t>((end - begin) * columns));
    for_grid_runs(tensor.rows, begin, end, [&](int64_t row, int64_t from, int64_t count) {
      parameter.read(from * columns, count * columns, values.data() + (row - begin) * columns);
    });
    if (tensor.transposed) {
      turned.resize(values.size());
      order.to_file(values.data(), turned.data());
    }
    writer.write_floats(tensor.transposed ? turned : values);
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
    HeldMatrix held;
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

    std::optional<int64_t> grid_row(int64_t row) const { return tensor->rows.grid_row(row); }
  };
  /// A matrix of a tensor that the file has transposed, as the parameter has it.
  struct HeldMatrix {
    const GgufEntry* entry = nullptr;
    int64_t index = -1;
    std::vector<float> file, values;
  };

  bool reorders() const { return order_.transposed || order_.interleaved; }

  /// Elements [first, first + count) of the parameter.
  void read(int64_t first, int64_t count, float* values, HeldMatrix& held) const {
    while (count > 0) {
      const int64_t row = first / columns_, column = first % columns_;
      const auto part =
          std::find_if(parts_.begin(), parts_.end(), [&](const Part& p) { return p.grid_row(row).has_value(); });
      HONE_ASSERT(part != parts_.end(), slice_.name);
      const int64_t at = *part->grid_row(row), wanted = (column + count + columns_ - 1) / columns_;
      int64_t run = 1;
      while (run < wanted && part->grid_row(row + run) == at + run) ++run;
      if (part->tensor->transposed) run = std::min(run, part->tensor->rows.count[2] - at % part->tensor->rows.count[2]);
      const int64_t elements = std::min(count, run * columns_ - column);
      if (part->tensor->transposed) {
        read_transposed(*part, at, column, elements, values, held);
      } else {
        file_.read_floats(*part->entry, at * columns_ + column, elements, values);
      }
      first += elements, count -= elements, values += elements;
    }
  }

  /// Elements from column `column` of row `row` on, within one matrix.
  void read_transposed(const Part& part, int64_t row, int64_t column, int64_t elements, float* values,
                       HeldMatrix& held) const {
    const int64_t rows = part.tensor->rows.count[2], index = row / rows, numel = rows * columns_;
    if (held.entry != part.entry || held.index != index) {
      held.file.resize(static_cast<size_t>(numel));
      held.values.resize(static_cast<size_t>(numel));
      file_.read_floats(*part.entry, index * numel, numel, held.file.data());
      MatrixOrder(FileOrder::kTransposed, {rows, columns_})
          .rows_from_file(held.file.data(), 0, rows, held.values.data());
      held.entry = part.entry, held.index = index;
    }
    std::copy_n(held.values.begin() + (row % rows * columns_ + column), elements, values);
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
