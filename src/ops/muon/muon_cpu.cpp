#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/row_math/rounded_blocks.h"
#include "ops/muon/muon.h"

namespace hone::cpu {

namespace {

/// The iteration's polynomial a·x + b·x³ + c·x⁵.
constexpr float kA = 3.4445f, kB = -4.7750f, kC = 2.0315f;
/// Target elements of a batch of matrices, so that small matrices use all threads.
constexpr int64_t kBatchElements = int64_t{1} << 22;
/// Elements whose squares a task sums.
constexpr int64_t kChunk = 16 * kRowBlock;

/// The number of matrices of a tensor in one batch, and its memory.
struct Batch {
  int64_t numel, side;  ///< per matrix: elements, and the smaller of rows and columns
  int64_t most;         ///< maximum matrices per batch; several batches start at multiples of 4 elements

  static Batch of(const MuonTensor& tensor) {
    const int64_t numel = tensor.rows * tensor.columns, count = tensor.parameter.numel() / numel;
    const int64_t unit = numel % 4 == 0 ? 1 : numel % 2 == 0 ? 2 : 4;
    const int64_t most = std::max<int64_t>(kBatchElements / numel / unit, 1) * unit;
    return {numel, std::min(tensor.rows, tensor.columns), std::min(most, count)};
  }

  int64_t chunks() const { return (numel + kChunk - 1) / kChunk; }
  int64_t elements() const { return most * numel; }
  int64_t squares() const { return most * side * side; }
};

/// Memory for a batch of every tensor.
struct Workspace {
  Tensor x, next;     ///< matrices, and the result of an iteration
  Tensor gram, poly;  ///< [side, side] per matrix
  Tensor sums;        ///< float64, per chunk of each matrix
};

/// A tensor's update.
class Update {
 public:
  Update(const MuonArgs& args, const MuonTensor& tensor, ThreadPool& pool, const Workspace& workspace)
      : args_(args),
        tensor_(tensor),
        pool_(pool),
        math_(row_math()),
        batch_(Batch::of(tensor)),
        wide_(tensor.rows <= tensor.columns),
        key_(mix_key(args.scalars->seed, tensor.stream_id)),
        workspace_(workspace) {}

  void run() {
    const int64_t count = tensor_.parameter.numel() / batch_.numel;
    for (int64_t first = 0; first < count; first += batch_.most) {
      begin_ = first * batch_.numel;
      matrices_ = std::min(batch_.most, count - first);
      x_ = workspace_.x.as<float>();
      next_ = workspace_.next.as<float>();
      update_momentum();
      normalise();
      for (int i = 0; i < args_.steps; ++i) iterate();
      apply();
    }
  }

 private:
  /// Calls body(range of the tensor, the same elements of x) for the blocks of the batch.
  template <class Body>
  void for_blocks(const Body& body) const {
    parallel_blocks(pool_, matrices_ * batch_.numel, [&](int64_t at, int64_t count) {
      body(Range{begin_ + at, count, tensor_.first_element}, x_ + at);
    });
  }

  void update_momentum() const {
    const float clip = args_.scalars->clip_coefficient;
    const auto momentum = static_cast<float>(args_.momentum), fresh = static_cast<float>(1.0 - args_.momentum);
    for_blocks([&](const Range& range, float* x) {
      float m_buffer[kRowBlock], g_buffer[kRowBlock];
      float* const m = load_rounded(math_, tensor_.m, range, m_buffer);
      const float* const gradient = load_block(math_, tensor_.gradient, range.begin, g_buffer, range.count);
      for (int64_t i = 0; i < range.count; ++i) {
        const float g = gradient[i] * clip;
        m[i] += (g - m[i]) * fresh;
        x[i] = args_.nesterov ? g + (m[i] - g) * momentum : m[i];
      }
      store_rounded(math_, m, tensor_.m, range, key_, RoundingUse::kMoments);
    });
  }

  /// Divides each matrix by its norm.
  void normalise() const {
    const int64_t chunks = batch_.chunks();
    double* const sums = workspace_.sums.as<double>();
    const auto for_chunks = [&](const auto& body) {
      pool_.parallel_for(matrices_ * chunks, [&](int64_t task, int) {
        const int64_t matrix = task / chunks, offset = task % chunks * kChunk;
        body(matrix, sums[task], x_ + matrix * batch_.numel + offset, std::min(kChunk, batch_.numel - offset));
      });
    };
    for_chunks([&](int64_t, double& sum, const float* x, int64_t count) { sum = math_.sum_squares(x, count); });
    for (int64_t matrix = 0; matrix < matrices_; ++matrix) {
      double* const parts = sums + matrix * chunks;
      double sum = 0;
      for (int64_t i = 0; i < chunks; ++i) sum += parts[i];
      std::fill_n(parts, chunks, 1.0 / std::max(std::sqrt(sum), args_.eps));
    }
    for_chunks([&](int64_t, const double& scale, float* x, int64_t count) {
      math_.scale(static_cast<float>(scale), x, x, count);
    });
  }

  /// A view of a matrix with `columns` columns at `data`.
  static MatrixView view(const float* data, int64_t columns) {
    return {.data = data, .dtype = DType::kF32, .row_stride = columns};
  }

  /// Runs the product returned by of(matrix) for every matrix of the batch.
  template <class Of>
  void multiply(const Of& of) const {
    std::vector<GemmArgs> products;
    for (int64_t matrix = 0; matrix < matrices_; ++matrix) {
      products.push_back(of(matrix));
      products.back().may_round = tensor_.may_round;
    }
    grouped_gemm(pool_, products);
  }

  void copy(const float* from, float* to, int64_t count) const {
    pool_.parallel_ranges(count, kChunk,
                          [&](int64_t begin, int64_t end) { std::copy(from + begin, from + end, to + begin); });
  }

  /// One Newton-Schulz step: sums over the larger side of x, so that x is never transposed.
  void iterate() {
    const int64_t side = batch_.side, numel = batch_.numel, other = numel / side, columns = tensor_.columns;
    float *const gram = workspace_.gram.as<float>(), *const poly = workspace_.poly.as<float>();
    const auto square = [&](float* of, int64_t matrix) { return of + matrix * side * side; };
    multiply([&](int64_t matrix) {
      const MatrixView x = view(x_ + matrix * numel, columns);
      return GemmArgs{.m = side,
                      .n = side,
                      .k = other,
                      .a = wide_ ? x : transposed(x),
                      .b = wide_ ? transposed(x) : x,
                      .c = square(gram, matrix),
                      .ldc = side};
    });
    copy(gram, poly, matrices_ * side * side);
    multiply([&](int64_t matrix) {
      const MatrixView a = view(square(gram, matrix), side);
      return GemmArgs{.m = side,
                      .n = side,
                      .k = side,
                      .a = a,
                      .b = a,
                      .c = square(poly, matrix),
                      .ldc = side,
                      .alpha = kC,
                      .beta = kB};
    });
    copy(x_, next_, matrices_ * numel);
    multiply([&](int64_t matrix) {
      const MatrixView x = view(x_ + matrix * numel, columns), p = view(square(poly, matrix), side);
      return GemmArgs{.m = tensor_.rows,
                      .n = columns,
                      .k = side,
                      .a = wide_ ? p : x,
                      .b = wide_ ? x : p,
                      .c = next_ + matrix * numel,
                      .ldc = columns,
                      .beta = kA};
    });
    std::swap(x_, next_);
  }

  double rate_of_shape() const {
    const auto rows = static_cast<double>(tensor_.rows), columns = static_cast<double>(tensor_.columns);
    return args_.rate == MuonRate::kOriginal ? std::sqrt(std::max(1.0, rows / columns))
                                             : 0.2 * std::sqrt(std::max(rows, columns));
  }

  void apply() const {
    const double lr = static_cast<double>(args_.scalars->learning_rate) * args_.rate_factor;
    const auto decay = static_cast<float>(1.0 - lr * args_.weight_decay);
    const auto rate = static_cast<float>(lr * rate_of_shape());
    for_blocks([&](const Range& range, const float* x) {
      float buffer[kRowBlock];
      float* const p = load_rounded(math_, tensor_.parameter, range, buffer);
      for (int64_t i = 0; i < range.count; ++i) p[i] = p[i] * decay - rate * x[i];
      store_rounded(math_, p, tensor_.parameter, range, key_, RoundingUse::kParameter);
      if (tensor_.working_copy.defined()) store_block(math_, p, tensor_.working_copy, range.begin, range.count);
    });
  }

  const MuonArgs& args_;
  const MuonTensor& tensor_;
  ThreadPool& pool_;
  const RowMath& math_;
  const Batch batch_;
  const bool wide_;
  const uint64_t key_;
  const Workspace& workspace_;
  // The current batch:
  int64_t begin_ = 0, matrices_ = 0;
  float *x_ = nullptr, *next_ = nullptr;
};

}  // namespace

void muon(const Context& context, const MuonArgs& args) {
  int64_t elements = 0, squares = 0, chunks = 0;
  for (const MuonTensor& tensor : args.tensors) {
    const Batch batch = Batch::of(tensor);
    elements = std::max(elements, batch.elements());
    squares = std::max(squares, batch.squares());
    chunks = std::max(chunks, batch.most * batch.chunks());
  }
  ArenaScope scratch(context.scratch());
  const Workspace workspace{scratch.take({elements}, DType::kF32), scratch.take({elements}, DType::kF32),
                            scratch.take({squares}, DType::kF32), scratch.take({squares}, DType::kF32),
                            scratch.take({chunks}, DType::kF64)};
  context.launch([args, workspace](ThreadPool& pool) {
    if (args.scalars->nonfinite != 0) return;
    for (const MuonTensor& tensor : args.tensors) Update(args, tensor, pool, workspace).run();
  });
}

}  // namespace hone::cpu
