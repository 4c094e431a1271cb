// FileOrder: the order of a file tensor's elements relative to the parameter.
//
// Parameters hold every linear weight as [.., out, in], gate before up, as ops read it. Some files hold stacked weights
// transposed, with the rows of gate and up interleaved.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/base/error.h"
#include "core/base/tensor.h"

namespace hone {

enum class FileOrder {
  kSame,                   ///< a contiguous run of the parameter
  kTransposed,             ///< [.., in, out]
  kTransposedInterleaved,  ///< [.., in, out], outputs interleaved
  kInterleaved,            ///< a bias [.., out], outputs interleaved: gate 0, up 0, gate 1, up 1, …
};

/// A tensor that is a stack of matrices [out, in] (a bias: [out, 1]) in memory, and of matrices in some other order in
/// the file.
struct MatrixOrder {
  int64_t out = 0, in = 0;
  bool transposed = false;   ///< the file holds [in, out]
  bool interleaved = false;  ///< output j of the file is output j / 2 of gate (even j) or of up

  MatrixOrder(FileOrder order, const Shape& memory)
      : out(order == FileOrder::kInterleaved ? memory[-1]
            : memory.rank() < 2              ? 1
                                             : memory[-2]),
        in(order == FileOrder::kInterleaved ? 1 : memory[-1]),
        transposed(order == FileOrder::kTransposed || order == FileOrder::kTransposedInterleaved),
        interleaved(order == FileOrder::kInterleaved || order == FileOrder::kTransposedInterleaved) {
    HONE_ASSERT(!interleaved || out % 2 == 0);
  }

  int64_t numel() const { return out * in; }
  /// The output of the file that is output `row` in memory.
  int64_t file_output(int64_t row) const {
    if (!interleaved) return row;
    return row < out / 2 ? 2 * row : 2 * (row - out / 2) + 1;
  }

  /// Rows [begin, end) of a matrix in memory order, from the whole matrix in the file's order.
  template <class T>
  void rows_from_file(const T* file, int64_t begin, int64_t end, T* rows) const {
    if (transposed) {
      return for_tiles(begin, end,
                       [&](int64_t row, int64_t column, int64_t at) { rows[(row - begin) * in + column] = file[at]; });
    }
    for (int64_t row = begin; row < end; ++row) {
      const T* from = file + file_output(row) * in;
      std::copy(from, from + in, rows + (row - begin) * in);
    }
  }
  /// A matrix in the file's order, from memory order.
  template <class T>
  void to_file(const T* memory, T* file) const {
    if (transposed) {
      return for_tiles(0, out, [&](int64_t row, int64_t column, int64_t at) { file[at] = memory[row * in + column]; });
    }
    for (int64_t row = 0; row < out; ++row) {
      std::copy(memory + row * in, memory + (row + 1) * in, file + file_output(row) * in);
    }
  }

 private:
  /// Calls body(row, column, place in the file) in tiles that keep both sides of a transposition in the first-level
  /// cache.
  template <class Body>
  void for_tiles(int64_t begin, int64_t end, const Body& body) const {
    constexpr int64_t kTile = 32;
    for (int64_t row_tile = begin; row_tile < end; row_tile += kTile) {
      const int64_t row_end = row_tile + kTile < end ? row_tile + kTile : end;
      for (int64_t tile = 0; tile < in; tile += kTile) {
        const int64_t tile_end = tile + kTile < in ? tile + kTile : in;
        for (int64_t row = row_tile; row < row_end; ++row) {
          const int64_t output = file_output(row);
          for (int64_t column = tile; column < tile_end; ++column) body(row, column, column * out + output);
        }
      }
    }
  }
};

/// The shape in a file of a tensor whose shape in the parameter is `memory`.
inline Shape file_shape(FileOrder order, const Shape& memory) {
  if (order != FileOrder::kTransposed && order != FileOrder::kTransposedInterleaved) return memory;
  Shape shape;
  for (int i = 0; i + 2 < memory.rank(); ++i) shape.push_back(memory[i]);
  shape.push_back(memory[-1]);
  shape.push_back(memory[-2]);
  return shape;
}

}  // namespace hone
