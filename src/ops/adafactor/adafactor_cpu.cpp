#include <cmath>

#include "core/cpu/thread_pool.h"
#include "kernels/cpu/row_math/rounded_blocks.h"
#include "ops/adafactor/adafactor.h"

namespace hone::cpu {

namespace {

/// Target elements of a task whose rows' sums are added up, independent of the number of threads.
constexpr int64_t kTaskElements = 1 << 14;

int64_t rows_of_task(const AdafactorRows& rows) { return std::max<int64_t>(1, kTaskElements / rows.width); }

int64_t tasks_of(const AdafactorRows& rows) { return (rows.rows() + rows_of_task(rows) - 1) / rows_of_task(rows); }

/// One tensor's update.
class Update {
 public:
  /// `sums` float64, two per task; `row_means` float64, one per matrix.
  Update(const AdafactorArgs& args, const AdafactorTensor& tensor, ThreadPool& pool, double* sums, double* row_means)
      : args_(args),
        tensor_(tensor),
        pool_(pool),
        math_(row_math()),
        rows_(AdafactorRows::of(tensor)),
        factored_(tensor.rows.defined()),
        clip_(args.scalars->clip_coefficient),
        one_minus_beta2_(static_cast<double>(args.scalars->bias_correction2)),
        key_(mix_key(args.scalars->seed, tensor.stream_id)),
        sums_(sums),
        row_means_(row_means) {}

  void run() {
    if (factored_) {
      update_rows();
      update_columns();
    }
    measure();
    apply();
  }

 private:
  /// A row or a block of it: its position in its matrix and in the tensor.
  struct Block {
    int64_t row, column;  // `row` counts over all matrices
    Range range;
  };

  template <class Body>
  void for_blocks(int64_t row, const Body& body) const {
    const int64_t begin = row * rows_.width, n = std::min(rows_.width, rows_.elements - begin);
    for_row_blocks(n, [&](int64_t column, int64_t count) { body(Block{row, column, {begin + column, count}}); });
  }

  /// Calls body(row, sums of its task) for all rows.
  template <class Body>
  void for_rows(const Body& body) const {
    const int64_t step = rows_of_task(rows_);
    pool_.parallel_for(tasks_of(rows_), [&](int64_t task, int) {
      double* sums = sums_ + 2 * task;
      sums[0] = sums[1] = 0;
      for (int64_t row = task * step; row < std::min(rows_.rows(), (task + 1) * step); ++row) body(row, sums);
    });
  }

  float mixed(float moment, double mean_square) const {
    const double fresh = mean_square + args_.eps1;
    return static_cast<float>((1.0 - one_minus_beta2_) * static_cast<double>(moment) + one_minus_beta2_ * fresh);
  }

  void update_rows() const {
    const double scale = static_cast<double>(clip_) * static_cast<double>(clip_);
    for_rows([&](int64_t row, double*) {
      double sum = 0;
      for_blocks(row, [&](const Block& block) {
        float buffer[kRowBlock];
        const float* g = load_block(math_, tensor_.gradient, block.range.begin, buffer, block.range.count);
        sum += math_.sum_squares(g, block.range.count);
      });
      float& moment = tensor_.rows.as<float>()[row];
      moment = mixed(moment, scale * sum / static_cast<double>(rows_.width));
    });
    pool_.parallel_for(rows_.matrices, [&](int64_t matrix, int) {
      double sum = 0;
      const float* moments = tensor_.rows.as<float>() + matrix * rows_.rows_of_matrix;
      for (int64_t r = 0; r < rows_.rows_of_matrix; ++r) sum += static_cast<double>(moments[r]);
      row_means_[matrix] = sum / static_cast<double>(rows_.rows_of_matrix);
    });
  }

  /// A task owns columns of a matrix and processes its rows in order.
  void update_columns() const {
    constexpr int64_t kColumns = 128;
    const double scale = static_cast<double>(clip_) * static_cast<double>(clip_);
    const int64_t groups = (rows_.width + kColumns - 1) / kColumns;
    pool_.parallel_for(rows_.matrices * groups, [&](int64_t task, int) {
      const int64_t matrix = task / groups, begin = task % groups * kColumns;
      const int64_t count = std::min(kColumns, rows_.width - begin);
      double sums[kColumns] = {};
      for (int64_t r = 0; r < rows_.rows_of_matrix; ++r) {
        float buffer[kColumns];
        const int64_t at = (matrix * rows_.rows_of_matrix + r) * rows_.width + begin;
        const float* g = load_block(math_, tensor_.gradient, at, buffer, count);
        for (int64_t c = 0; c < count; ++c) sums[c] += static_cast<double>(g[c]) * static_cast<double>(g[c]);
      }
      float* moments = tensor_.columns.as<float>() + matrix * rows_.width + begin;
      for (int64_t c = 0; c < count; ++c) {
        moments[c] = mixed(moments[c], scale * sums[c] / static_cast<double>(rows_.rows_of_matrix));
      }
    });
  }

  /// Computes u of a block before clipping.
  void form_update(const Block& block, float* u) const {
    float buffer[kRowBlock];
    const float* g = load_block(math_, tensor_.gradient, block.range.begin, buffer, block.range.count);
    if (!factored_) {
      const float* v = tensor_.v.as<float>() + block.range.begin;
      for (int64_t i = 0; i < block.range.count; ++i) u[i] = g[i] * clip_ / std::sqrt(v[i]);
      return;
    }
    const int64_t matrix = block.row / rows_.rows_of_matrix;
    const double share = static_cast<double>(tensor_.rows.as<float>()[block.row]) / row_means_[matrix];
    const auto factor = static_cast<float>(static_cast<double>(clip_) / std::sqrt(share));
    const float* columns = tensor_.columns.as<float>() + matrix * rows_.width + block.column;
    for (int64_t i = 0; i < block.range.count; ++i) u[i] = g[i] * (factor / std::sqrt(columns[i]));
  }

  void update_v(const Block& block) const {
    float buffer[kRowBlock];
    const float* g = load_block(math_, tensor_.gradient, block.range.begin, buffer, block.range.count);
    float* v = tensor_.v.as<float>() + block.range.begin;
    for (int64_t i = 0; i < block.range.count; ++i) {
      const double value = static_cast<double>(g[i]) * static_cast<double>(clip_);
      v[i] = mixed(v[i], value * value);
    }
  }

  /// Sums the squares of the update and, if it scales the rate, of the parameter.
  void measure() {
    for_rows([&](int64_t row, double* sums) {
      for_blocks(row, [&](const Block& block) {
        float u[kRowBlock], p[kRowBlock];
        if (!factored_) update_v(block);
        form_update(block, u);
        sums[0] += math_.sum_squares(u, block.range.count);
        if (!args_.scale_parameter) return;
        sums[1] += math_.sum_squares(load_block(math_, tensor_.parameter, block.range.begin, p, block.range.count),
                                     block.range.count);
      });
    });
    double update = 0, parameter = 0;
    for (int64_t task = 0; task < tasks_of(rows_); ++task) {
      update += sums_[2 * task];
      parameter += sums_[2 * task + 1];
    }
    const auto n = static_cast<double>(rows_.elements);
    double lr = static_cast<double>(args_.scalars->learning_rate) * args_.rate_factor;
    if (args_.scale_parameter) lr *= std::max(args_.eps2, std::sqrt(parameter / n));
    scale_ = static_cast<float>(lr / std::max(1.0, std::sqrt(update / n) / args_.clip_threshold));
    decay_ = static_cast<float>(1.0 - lr * tensor_.weight_decay);
  }

  void apply() const {
    const auto beta1 = static_cast<float>(args_.beta1), one_minus_beta1 = static_cast<float>(1.0 - args_.beta1);
    for_rows([&](int64_t row, double*) {
      for_blocks(row, [&](const Block& block) {
        float u[kRowBlock], m_buffer[kRowBlock], p_buffer[kRowBlock];
        const Range range = aligned(block);
        form_update(block, u);
        math_.scale(scale_, u, u, range.count);
        if (tensor_.m.defined()) {
          float* m = load_rounded(math_, tensor_.m, range, m_buffer);
          for (int64_t i = 0; i < range.count; ++i) u[i] = m[i] = beta1 * m[i] + one_minus_beta1 * u[i];
          store_rounded(math_, m, tensor_.m, range, key_, RoundingUse::kMoments);
        }
        float* p = load_rounded(math_, tensor_.parameter, range, p_buffer);
        for (int64_t i = 0; i < range.count; ++i) p[i] = p[i] * decay_ - u[i];
        store_rounded(math_, p, tensor_.parameter, range, key_, RoundingUse::kParameter);
        if (tensor_.working_copy.defined()) store_block(math_, p, tensor_.working_copy, range.begin, range.count);
      });
    });
  }

  /// A block's range. Its random numbers are those of rows that start at multiples of 4, whatever their width.
  Range aligned(const Block& block) const {
    Range range = block.range;
    range.first_element = block.row * ((rows_.width + 3) / 4 * 4 - rows_.width);
    return range;
  }

  const AdafactorArgs& args_;
  const AdafactorTensor& tensor_;
  ThreadPool& pool_;
  const RowMath& math_;
  AdafactorRows rows_;
  bool factored_;
  float clip_;
  double one_minus_beta2_;
  uint64_t key_;
  double* sums_;
  double* row_means_;
  float scale_ = 0, decay_ = 1;
};

}  // namespace

void adafactor(const Context& context, const AdafactorArgs& args) {
  int64_t tasks = 0, matrices = 0;
  for (const AdafactorTensor& tensor : args.tensors) {
    const AdafactorRows rows = AdafactorRows::of(tensor);
    tasks = std::max(tasks, tasks_of(rows));
    matrices = std::max(matrices, rows.matrices);
  }
  ArenaScope scratch(context.scratch());
  const Tensor sums = scratch.take({tasks, 2}, DType::kF64), means = scratch.take({matrices}, DType::kF64);
  context.launch([args, sums, means](ThreadPool& pool) {
    if (args.scalars->nonfinite != 0) return;
    for (const AdafactorTensor& tensor : args.tensors) {
      if (tensor.parameter.numel() == 0) continue;
      Update(args, tensor, pool, sums.as<double>(), means.as<double>()).run();
    }
  });
}

}  // namespace hone::cpu
