// Tensors of a GGUF file as rows of a model's parameters, in both directions, a piece at a time.
//
// Parameters have their own order (params/file_order.h): matrices [.., out, in], gate before up. A GGUF tensor holds
// whole rows of one parameter, in an order that grids give: gate or up alone, the rows of a head as RoPE of
// neighbouring pairs wants them, or a projection's heads in another order; or such rows as the columns of its matrices.
// A vector counts as a matrix of one column, and so do the biases of all experts together.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/cpu/thread_pool.h"
#include "weights/checkpoint.h"
#include "weights/gguf_file.h"
#include "weights/stored_tensor.h"
#include "weights/tensor_file.h"

namespace hone {

/// Rows of a parameter in the order of a grid: row (a, b, c), counted with c fastest, is row
/// offset + a stride[0] + b stride[1] + c stride[2] of the parameter. Strides are nested: sorted by size, each is at
/// least the extent of all smaller ones.
struct RowGrid {
  int64_t offset = 0;
  std::array<int64_t, 3> count = {1, 1, 1}, stride = {0, 0, 0};

  static RowGrid all(int64_t rows) { return {0, {1, 1, rows}, {0, 0, 1}}; }
  /// Rows [begin, begin + part) of each of `matrices` matrices that have `rows` rows.
  static RowGrid part_of_each(int64_t matrices, int64_t rows, int64_t begin, int64_t part) {
    return {begin, {1, matrices, part}, {0, rows, 1}};
  }
  /// Heads of `head_dim` rows, halves in turn: rows 0, d / 2, 1, d / 2 + 1, … of each head, which turns RoPE of halves
  /// into RoPE of neighbours.
  static RowGrid halves_in_turn(int64_t heads, int64_t head_dim) {
    return {0, {heads, head_dim / 2, 2}, {head_dim, 1, head_dim / 2}};
  }

  int64_t rows() const { return count[0] * count[1] * count[2]; }
  /// The parameter's row that is row `row` of the grid.
  int64_t parameter_row(int64_t row) const;
  /// The inverse; none if the grid does not have it.
  std::optional<int64_t> grid_row(int64_t parameter_row) const;
};

/// Rows of a parameter in the order of grids, one grid after another.
class RowOrder {
 public:
  RowOrder(RowGrid grid) : grids_{grid} {}                            // NOLINT(google-explicit-constructor)
  RowOrder(std::vector<RowGrid> grids) : grids_(std::move(grids)) {}  // NOLINT(google-explicit-constructor)

  int64_t rows() const;
  int64_t parameter_row(int64_t row) const;
  std::optional<int64_t> row_of(int64_t parameter_row) const;

 private:
  std::vector<RowGrid> grids_;
};

/// What a file has of a parameter's value x.
enum class GgufValues {
  kSame,
  kPlusOne,   ///< 1 + x: norms whose parameters are that much less
  kMinusExp,  ///< -exp(x): rates of decay
};

/// One tensor of a file.
struct GgufTensor {
  std::string name;
  std::vector<int64_t> shape;  ///< as in GgufEntry
  const Parameter* parameter = nullptr;
  RowOrder rows;
  std::optional<RowGrid> column_order = {};  ///< order of columns, as of rows; none: the parameter's
  int64_t transposed = 0;  ///< each run of as many rows is a matrix, which the file has transposed; 0: it does not
  GgufValues values = GgufValues::kSame;
  bool exact = false;  ///< float32 in every file: norms, biases, routers
  bool adapts = true;  ///< llama.cpp applies a LoRA of it
  int64_t columns() const;
};

/// Elements of a matrix of this parameter's row: its last dimension; 1 for vectors and biases.
int64_t row_elements(const Parameter& parameter);

/// A parameter's elements in its own order, from the files of a checkpoint. Thread-safe, each thread with an object of
/// its own.
class ParameterFloats {
 public:
  ParameterFloats(const Checkpoint& checkpoint, const FileLayout& layout, const Parameter& parameter);
  /// Elements [first, first + count). Memory: one matrix where the files transpose it.
  void read(int64_t first, int64_t count, float* values);

 private:
  struct Source {
    StoredTensor stored;
    int64_t offset, numel;
    MatrixOrder order;
  };
  void read_reordered(const Source& source, int64_t first, int64_t count, float* values);

  std::vector<Source> sources_;
  ReadScratch scratch_;
  std::vector<float> matrix_, rows_;
  int64_t held_ = -1;  ///< the element at which the matrix in rows_ begins
};

/// The type of each tensor in a file of `type`: exact ones are F32, and rows that blocks do not divide F16.
GgufType gguf_type_of(const GgufTensor& tensor, GgufType type);

/// Writes the tensor that is next, from the files of a checkpoint.
void write_gguf_tensor(GgufWriter& writer, const GgufTensor& tensor, const Checkpoint& checkpoint,
                       const FileLayout& layout);

/// The files of a model folder with `dtype`, made of a GGUF file's tensors, which cover every parameter of the store.
/// The arguments must outlive the result.
std::vector<TensorFile> files_of_gguf(const GgufFile& file, const std::vector<GgufTensor>& tensors,
                                      const ParameterStore& store, DType dtype, int64_t max_shard_size);

}  // namespace hone
