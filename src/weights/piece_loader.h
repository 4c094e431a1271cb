// PieceLoader: reads values of a checkpoint piece by piece, each by one thread, from the file to where they belong.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "core/cpu/thread_pool.h"
#include "params/payload.h"
#include "weights/checkpoint.h"
#include "weights/stored_tensor.h"
#include "weights/tensor_pieces.h"

namespace hone {

/// A tensor of a file, where it goes, and how its order must change on the way.
struct LoadedSource {
  const Parameter* parameter;
  StoredTensor stored;
  int64_t offset;      ///< elements from the parameter's start
  int64_t numel;       ///< elements of the tensor
  MatrixOrder order;   ///< the order of a matrix, as it is read
  StoredValue value;   ///< receives the value
  Tensor master = {};  ///< receives the float32 values of ParameterShare::own(), if that is defined

  bool contiguous() const { return !order.transposed && !order.interleaved; }
  bool dense() const { return parameter->value().format().dense(); }
  /// Whether this rank stores only a shard, of the value or of its master.
  bool sharded() const {
    return parameter->share().spread() || parameter->value().home().sharded ||
           (parameter->share().sharded() && keeps_master(*parameter));
  }
  /// Rows of the parameter that are written at once are a multiple of these.
  int64_t rows_together() const {
    return parameter->value().format().rows_together(parameter->value().packed() ? parameter->spec().stack()
                                                                                 : parameter->shape());
  }
  /// Whether the file has what the parameter keeps, chunk by chunk.
  bool passes_through() const {
    return parameter->value().packed() && contiguous() && stored.has_chunks(packed_layout(*parameter));
  }
  int64_t elements_together() const { return rows_together() * parameter->shape()[-1]; }
};

/// The tensors of `checkpoint` that make up the value of a parameter, which `layout` names; they go to `value`.
std::vector<LoadedSource> sources_of(const Checkpoint& checkpoint, const FileLayout& layout, const Parameter& parameter,
                                     const StoredValue& value, const Tensor& master = {});

/// Elements [first, first + count) of a source, in the file's order. Where that differs from the parameter's: rows of
/// one matrix (gate and up in turn), or one whole matrix that is to be transposed.
struct LoadedPiece {
  const LoadedSource* source;
  int64_t first, count;
};

/// What of the sources this rank keeps, in pieces. The sources must outlive them.
std::vector<LoadedPiece> pieces_of(std::span<const LoadedSource> sources);

/// Loads pieces with the threads of pools, one call at a time.
class PieceLoaders {
 public:
  explicit PieceLoaders(int threads);
  ~PieceLoaders();

  /// Returns when the pieces are where they belong. `loaded` is called by one thread at a time. UserError for a number
  /// that is not finite, and for what cannot be read.
  void load(std::span<const LoadedPiece> pieces, ThreadPool& pool,
            const std::function<void(const LoadedPiece&)>& loaded = {});

 private:
  class Loader;
  std::vector<Loader> loaders_;
};

}  // namespace hone
