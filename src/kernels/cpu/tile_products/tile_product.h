// Products of the rows of groups with the groups' weights on AMX: one pass over tasks of all groups, with an epilogue
// while accumulators are in L1 (expert_tiles.h).
#pragma once

#include <atomic>
#include <vector>

#include "core/cpu/thread_pool.h"
#include "kernels/cpu/grouped_rows.h"
#include "kernels/cpu/tile_products/expert_tiles.h"
#include "kernels/expert_adapter.h"
#include "tape/weight.h"

namespace hone::cpu {

/// The product of rows with Aᵀ (or of dy with B) of all adapters, [R, J].
struct TileLowRank {
  Tensor rows;         ///< undefined without adapters, or if it is only used here
  bool formed = true;  ///< else the product computes and stores it, which is not
                       ///< possible with adapter dropout
};

/// The weight operand of a product.
struct TileFactor {
  WeightView weight;          ///< [E, columns, k], or [E, k, columns]
  bool columns_first = true;  ///< weight is [E, columns, k]
  const std::vector<ExpertAdapterView>* adapters = nullptr;

  int64_t columns() const { return weight.payload.shape[columns_first ? 1 : 2]; }
  int64_t depth() const { return weight.payload.shape[columns_first ? 2 : 1]; }
  amx::Operand operand(int64_t e) const;
  /// The factors of all adapters that connect their ranks with the columns of C, or with k.
  std::vector<amx::LowRankFactor> low_rank(int64_t e, bool joins_columns) const;
};

/// A product over all groups, run as tasks; the threads of the NUMA node that has a group's weight (spread_items of
/// core/cpu/numa.h) take its tasks first.
class TileProduct {
 public:
  /// `offsets` as in ExpertRows. `low_rank` [R, J] is undefined without adapters. `factor` must outlive this.
  TileProduct(const Tensor& offsets, const RowMatrix& a, const TileFactor& factor, const TileLowRank& low_rank);

  /// Makes a strip of 16 columns of the first half and 16 of the second.
  TileProduct& pair_halves();

  /// Calls finish(row) for every row of every part.
  template <class Finish>
  void run(ThreadPool& pool, const Finish& finish) {
    shape_.finish = [](const void* context, const amx::FinishedRow& row) {
      (*static_cast<const Finish*>(context))(row);
    };
    shape_.context = &finish;
    run(pool);
  }

  /// Stores the product in c, bf16 [R, columns].
  void store(ThreadPool& pool, const Tensor& c);

 private:
  /// Rows of an expert, whose columns are divided into parts of `strips`.
  struct Rows {
    int64_t expert, row, count, strips;
  };

  void run(ThreadPool& pool);
  void multiply(const Rows& rows, std::atomic<int64_t>& begun) const;
  int64_t strip_cost(int64_t rows) const;
  std::vector<Rows> cut(int threads) const;

  Tensor offsets_;
  const TileFactor& factor_;
  const int64_t strips_;
  const bool projects_;
  amx::TileTask shape_;
};

}  // namespace hone::cpu
