#include "weights/piece_loader.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <semaphore>

#include "kernels/cpu/row_math/row_math.h"

namespace hone {

namespace {

/// Elements of a piece.
constexpr int64_t kPiece = int64_t{1} << 20;

/// Elements of a piece of whole units of so many: one unit at least.
int64_t whole(int64_t unit) { return std::max<int64_t>(kPiece / unit, 1) * unit; }

/// What of a source this rank reads: the elements whose values it keeps or, where their order changes on the way, the
/// matrices that have some.
Slice wanted(const LoadedSource& source) {
  Slice here = source.value.slice;
  here.begin -= source.offset;
  here = here.intersect({0, source.numel});
  if (source.contiguous() || here.count == 0) return here;
  const int64_t matrix = source.order.numel();
  const int64_t begin = here.begin / matrix * matrix, end = (here.end() + matrix - 1) / matrix * matrix;
  return {begin, end - begin};
}

void cut(const LoadedSource& source, std::vector<LoadedPiece>& pieces) {
  const MatrixOrder& order = source.order;
  const Slice here = wanted(source);
  const int64_t matrix = source.contiguous() ? here.count : order.numel();
  // Pairs of rows stay together.
  const int64_t size = order.transposed    ? matrix
                       : order.interleaved ? whole(2 * order.in * source.rows_together())
                       : source.dense()    ? kPiece
                                           : whole(source.elements_together());
  for (int64_t begin = here.begin; matrix > 0 && begin < here.end(); begin += matrix) {
    for (int64_t at = 0; at < matrix; at += size) pieces.push_back({&source, begin + at, std::min(size, matrix - at)});
  }
}

/// Matrices of more elements are packed by a few threads at a time, since each is in memory as float32 meanwhile.
constexpr int64_t kLargeMatrix = int64_t{1} << 25;
std::counting_semaphore<> large_matrices{4};

}  // namespace

/// What one thread loads with.
class PieceLoaders::Loader {
 public:
  Loader() : writer_(kPiece * sizeof(float)) {}

  void load(const LoadedPiece& piece) {
    const LoadedSource& source = *piece.source;
    if (source.passes_through()) return load_chunks(piece);
    const bool large = source.parameter->value().packed() && piece.count > kLargeMatrix;
    if (large) large_matrices.acquire();
    load_values(piece);
    if (!large) return;
    exact_ = {};
    in_file_order_ = {};
    large_matrices.release();
  }
  void finish() { writer_.finish(); }

 private:
  /// The tensor that receives the values as they are read: the master if there is one.
  static const Tensor& exact_of(const LoadedSource& source) {
    return source.master.defined() ? source.master : source.value.payload;
  }
  void load_values(const LoadedPiece& piece) {
    const LoadedSource& source = *piece.source;
    if (!source.contiguous()) return load_reordered(piece);
    deliver(source, piece.first, piece.count, [&](DType dtype, std::byte* destination) {
      source.stored.read(scratch_, piece.first, piece.count, dtype, destination);
    });
  }
  /// Has fill(dtype, destination) write elements [first, first + count) of the source's place once: in float32 where
  /// there is a master, from which the value is rounded, or where it is encoded; else in the value's dtype.
  template <class Fill>
  void deliver(const LoadedSource& source, int64_t first, int64_t count, const Fill& fill) {
    if (!source.dense()) return deliver_encoded(source, source.offset + first, count, fill);
    if (source.sharded()) return deliver_shard(source, source.offset + first, count, fill);
    const Tensor& exact = exact_of(source);
    std::byte* destination = writer_.open(exact, source.offset + first, count);
    fill(exact.dtype, destination);
    if (!source.master.defined()) return;
    std::byte* rounded = writer_.open(source.value.payload, source.offset + first, count);
    row_math().narrow(reinterpret_cast<const float*>(destination), reinterpret_cast<BFloat16*>(rounded), count);
  }

  /// The same where this rank has a part of the value or of the master, or none.
  template <class Fill>
  void deliver_shard(const LoadedSource& source, int64_t first, int64_t count, const Fill& fill) {
    exact_.resize(static_cast<size_t>(count));
    fill(DType::kF32, reinterpret_cast<std::byte*>(exact_.data()));
    const auto write = [&](const Tensor& tensor, Slice slice) {
      const Slice here = slice.intersect({first, count});
      if (here.count == 0) return;
      std::byte* destination = writer_.open(tensor, here.begin - slice.begin, here.count);
      const float* values = exact_.data() + (here.begin - first);
      if (tensor.dtype == DType::kF32) {
        std::memcpy(destination, values, static_cast<size_t>(here.count) * sizeof(float));
      } else {
        row_math().narrow(values, reinterpret_cast<BFloat16*>(destination), here.count);
      }
    };
    write(source.value.payload, source.value.slice);
    if (source.master.defined()) write(source.master, source.parameter->share().own());
  }

  /// The same for whole rows of a value that is not dense.
  template <class Fill>
  void deliver_encoded(const LoadedSource& source, int64_t first, int64_t count, const Fill& fill) {
    const Parameter& parameter = *source.parameter;
    const int64_t together = source.elements_together(), columns = parameter.shape()[-1];
    HONE_ASSERT(first % together == 0 && count % together == 0, parameter.name());
    exact_.resize(static_cast<size_t>(count));
    fill(DType::kF32, reinterpret_cast<std::byte*>(exact_.data()));
    if (parameter.value().packed()) return deliver_packed(source, first, count);
    parameter.value().format().fill(encoded(parameter), first / columns, count / columns, exact_.data());
  }

  /// The same for whole matrices of a packed value, from exact_: those that this rank keeps.
  void deliver_packed(const LoadedSource& source, int64_t first, int64_t count) {
    const Parameter& parameter = *source.parameter;
    const PackedLayout layout = packed_layout(parameter);
    const auto& format = static_cast<const PackedFormat&>(parameter.value().format());
    for (int64_t at = 0; at < count; at += layout.elements()) {
      deliver_chunk(source, (first + at) / layout.elements(),
                    [&](std::byte* chunk) { format.pack(layout, exact_.data() + at, chunk); });
    }
  }

  /// Has make(chunk) write the chunk of a matrix, and puts it in its place if this rank keeps it.
  template <class Make>
  void deliver_chunk(const LoadedSource& source, int64_t matrix, const Make& make) {
    const PackedLayout layout = packed_layout(*source.parameter);
    const Slice here = source.value.slice;
    const int64_t place = matrix - here.begin / layout.elements();
    if (place < 0 || place >= here.count / layout.elements()) return;
    chunk_.assign(static_cast<size_t>(layout.bytes), std::byte{});
    make(chunk_.data());
    const Tensor& payload = source.value.payload;
    constexpr int64_t kMost = kPiece * int64_t{sizeof(float)};
    for (int64_t at = 0; at < layout.bytes; at += kMost) {
      const int64_t bytes = std::min(kMost, layout.bytes - at);
      std::memcpy(writer_.open(payload, place * layout.bytes + at, bytes), chunk_.data() + at,
                  static_cast<size_t>(bytes));
    }
  }

  void load_chunks(const LoadedPiece& piece) {
    const LoadedSource& source = *piece.source;
    const PackedLayout layout = packed_layout(*source.parameter);
    for (int64_t at = piece.first; at < piece.first + piece.count; at += layout.elements()) {
      deliver_chunk(source, (source.offset + at) / layout.elements(),
                    [&](std::byte* chunk) { source.stored.read_chunk(layout, at / layout.elements(), chunk); });
    }
  }

  void load_reordered(const LoadedPiece& piece) {
    const MatrixOrder& order = piece.source->order;
    const bool passes_in_float = !piece.source->dense() || piece.source->sharded();
    const DType dtype = passes_in_float ? DType::kF32 : exact_of(*piece.source).dtype;
    in_file_order_.resize(static_cast<size_t>(piece.count) * size_of(dtype));
    piece.source->stored.read(scratch_, piece.first, piece.count, dtype, in_file_order_.data());
    if (order.transposed) return place_rows(piece, order, piece.first, 0, order.out);
    // Rows [begin, end) of the file, begin and end even: gate rows and up rows from begin / 2 on.
    const int64_t matrix = piece.first / order.numel() * order.numel();
    const int64_t begin = (piece.first - matrix) / order.in, pairs = piece.count / order.in / 2;
    MatrixOrder part = order;
    part.out = 2 * pairs;
    place_rows(piece, part, matrix + begin / 2 * order.in, 0, pairs);
    place_rows(piece, part, matrix + (order.out / 2 + begin / 2 - pairs) * order.in, pairs, 2 * pairs);
  }

  /// Rows [begin, end) of the matrix in in_file_order_ go to row `begin` and on of the place at element `first`.
  void place_rows(const LoadedPiece& piece, const MatrixOrder& order, int64_t first, int64_t begin, int64_t end) {
    const int64_t rows = whole(order.in * piece.source->rows_together()) / order.in;
    for (int64_t row = begin; row < end; row += rows) {
      const int64_t row_end = std::min(row + rows, end);
      deliver(*piece.source, first + row * order.in, (row_end - row) * order.in,
              [&](DType dtype, std::byte* destination) {
                dispatch_float(dtype, [&](auto element) {
                  using T = decltype(element);
                  order.rows_from_file(reinterpret_cast<const T*>(in_file_order_.data()), row, row_end,
                                       reinterpret_cast<T*>(destination));
                });
              });
    }
  }

  PieceWriter writer_;
  ReadScratch scratch_;
  std::vector<std::byte> in_file_order_, chunk_;
  std::vector<float> exact_;
};

PieceLoaders::PieceLoaders(int threads) : loaders_(static_cast<size_t>(threads)) {}
PieceLoaders::~PieceLoaders() = default;

void PieceLoaders::load(std::span<const LoadedPiece> pieces, ThreadPool& pool,
                        const std::function<void(const LoadedPiece&)>& loaded) {
  HONE_ASSERT(static_cast<size_t>(pool.size()) <= loaders_.size());
  std::mutex mutex;
  pool.parallel_for(static_cast<int64_t>(pieces.size()), [&](int64_t i, int thread) {
    const LoadedPiece& piece = pieces[static_cast<size_t>(i)];
    loaders_[static_cast<size_t>(thread)].load(piece);
    const std::lock_guard lock(mutex);
    if (loaded) loaded(piece);
  });
  for (Loader& loader : loaders_) loader.finish();
}

std::vector<LoadedSource> sources_of(const Checkpoint& checkpoint, const FileLayout& layout, const Parameter& parameter,
                                     const StoredValue& value, const Tensor& master) {
  std::vector<LoadedSource> sources;
  for (const FileTensor& tensor : layout) {
    std::vector<std::string> missing;
    auto stored = StoredTensor::find(checkpoint, tensor, missing);
    HONE_ASSERT(stored && missing.empty(), tensor.name);
    sources.push_back({.parameter = &parameter,
                       .stored = *stored,
                       .offset = tensor.offset,
                       .numel = tensor.shape.numel(),
                       .order = stored->order(tensor),
                       .value = value,
                       .master = master});
  }
  return sources;
}

std::vector<LoadedPiece> pieces_of(std::span<const LoadedSource> sources) {
  std::vector<LoadedPiece> pieces;
  for (const LoadedSource& source : sources) cut(source, pieces);
  return pieces;
}

}  // namespace hone
