// Forward of attention on AMX: k and v are packed once for all blocks of queries and all heads of a group, then tasks
// run per block and key-value head.
#include "ops/attention/amx/attention_cpu.h"

#include <cmath>
#include <cstring>
#include <numbers>

#include "core/cpu/thread_pool.h"
#include "ops/attention/amx/attention.h"

namespace hone::cpu {

void pack_slab(const MatrixView& head, int64_t rows, int64_t dim, SlabForm form, std::byte* tiles) {
  const bool rows_are_lanes = form == SlabForm::kRowsLeft || form == SlabForm::kRowsRight;
  const bool left = form == SlabForm::kRowsLeft || form == SlabForm::kColumnsLeft;
  const int64_t lanes = rows_are_lanes ? rows : dim, depth = rows_are_lanes ? dim : rows;
  const amx::Operand operand{.data = head.data,
                             .dtype = head.dtype,
                             .lane_stride = rows_are_lanes ? head.row_stride : 1,
                             .depth_stride = rows_are_lanes ? 1 : head.row_stride,
                             .lane_index = rows_are_lanes ? head.row_index : nullptr};
  amx::pack(operand, left ? amx::TileOrder::kByLane : amx::TileOrder::kByPair, 0, lanes, 0, depth, tiles);
  if (form != SlabForm::kRowsRight || rows > amx::kLanes) return;
  const int64_t panel = amx::steps_of(dim) * amx::kTileBytes;
  std::memset(tiles + panel, 0, static_cast<size_t>(panel));  // masked keys must be finite
}

namespace {

/// Shared by the tasks of one call.
struct Forward {
  AttentionArgs args;
  AttentionShape shape;
  int64_t d_steps, v_steps;
  PackedHeads k, v;
  Tensor row_index;  // [rows] of a block of queries: rows of the matrix [tokens · heads, D]
  Tensor floats;     // [threads, floats of a block]
  Tensor tiles;      // [threads, bytes of a block]

  Forward(ArenaScope& memory, const AttentionArgs& arguments, int threads);
  int64_t rows() const { return row_index.shape[0]; }
  void prepare() const;
  void pack(const SequenceBlock& slab) const;
  void attend(const SequenceBlock& cut, int64_t kv_head, int thread) const;
};

Forward::Forward(ArenaScope& memory, const AttentionArgs& arguments, int threads)
    : args(arguments),
      shape(args.options, args.q.dtype),
      d_steps(amx::steps_of(shape.head_dim)),
      v_steps(amx::steps_of(shape.v_head_dim)) {
  const int64_t slabs = slab_capacity(args.q.shape[0], args.sequences.num_documents);
  k = PackedHeads(memory, shape.num_kv_heads, slabs, 2 * d_steps);
  v = PackedHeads(memory, shape.num_kv_heads, slabs, 2 * v_steps);
  const int64_t rows = (shape.query_tokens() * shape.group() + amx::kSlab - 1) / amx::kSlab * amx::kSlab;
  row_index = memory.take({rows}, DType::kI32);
  floats = memory.take(
      {threads, amx::kSlab * amx::kKeysAtOnce + rows * (2 * v_steps * amx::kLanes + amx::kLanes + amx::kLanes)},
      DType::kF32);
  tiles = memory.take({threads, rows / amx::kLanes * d_steps * amx::kTileBytes}, DType::kU8);
}

void Forward::prepare() const { fill_row_index(shape.group(), shape.num_heads, row_index); }

void Forward::pack(const SequenceBlock& cut) const {
  const int32_t* offsets = args.sequences.cu_seqlens.as<int32_t>();
  const int64_t begin = offsets[cut.sequence], row = begin + cut.block * amx::kSlab;
  const int64_t rows = std::min<int64_t>(amx::kSlab, offsets[cut.sequence + 1] - row);
  const int64_t slab = first_slab(begin, cut.sequence) + cut.block;
  for (int64_t head = 0; head < shape.num_kv_heads; ++head) {
    pack_slab(head_rows(args.k, row, head, shape.head_dim), rows, shape.head_dim, SlabForm::kRowsRight,
              k.slab(head, slab));
    pack_slab(head_rows(args.v, row, head, shape.v_head_dim), rows, shape.v_head_dim, SlabForm::kColumnsRight,
              v.slab(head, slab));
  }
}

void Forward::attend(const SequenceBlock& cut, int64_t kv_head, int thread) const {
  const int32_t* offsets = args.sequences.cu_seqlens.as<int32_t>();
  const int64_t begin = offsets[cut.sequence], length = offsets[cut.sequence + 1] - begin,
                head = kv_head * shape.group();
  const int64_t first = cut.block * shape.query_tokens(), token = begin + first;
  const int64_t tokens = std::min(shape.query_tokens(), length - first), slab = first_slab(begin, cut.sequence);
  std::byte* q = tiles.data + thread * tiles.shape[1];
  const MatrixView queries{.data = head_data(args.q, token, head, shape.head_dim),
                           .dtype = shape.dtype,
                           .row_stride = shape.head_dim,
                           .row_index = row_index.as<int32_t>()};
  float* scores = floats.as<float>() + thread * floats.shape[1];
  float* out = scores + amx::kSlab * amx::kKeysAtOnce;
  float* sums = out + rows() * 2 * v_steps * amx::kLanes;
  const amx::AttendBlock block{
      .queries = {tokens * shape.group(), first, shape.group(), shape.window},
      .q = q,
      .k = k.slab(kv_head, slab),
      .v = v.slab(kv_head, slab),
      .d_steps = d_steps,
      .v_panels = 2 * v_steps,
      .scale = shape.scale * std::numbers::log2e_v<float>,
      .scores = scores,
      .out = out,
      .largest = sums + rows() * amx::kLanes,
      .sums = sums,
  };
  pack_slab(queries, block.queries.rows, shape.head_dim, SlabForm::kRowsLeft, q);
  amx::attend(block);
  const int64_t width = args.out.shape[1], lse_stride = args.q.shape[0];
  for (int64_t row = 0; row < block.queries.rows; ++row) {
    const int64_t at = token + row / shape.group(), own_head = head + row % shape.group();
    uint16_t* to = reinterpret_cast<uint16_t*>(args.out.data) + at * width + own_head * shape.v_head_dim;
    const float sum = amx::finish_row(block, row, to, shape.v_head_dim);
    args.lse.as<float>()[own_head * lse_stride + at] = block.largest[row] * std::numbers::ln2_v<float> + std::log(sum);
  }
}

}  // namespace

void attention_on_amx(const Context& context, const AttentionArgs& args) {
  const int64_t tokens = args.q.shape[0], documents = args.sequences.num_documents;
  ArenaScope memory(context.scratch());
  const Forward forward(memory, args, context.threads());
  const SequenceBlocks slabs(memory, tokens, documents, amx::kSlab);
  const SequenceBlocks blocks(memory, tokens, documents, forward.shape.query_tokens());
  context.launch([forward, slabs, blocks](ThreadPool& pool) {
    const Tensor& offsets = forward.args.sequences.cu_seqlens;
    forward.prepare();
    const auto to_pack = slabs.cut(offsets);
    pool.parallel_for(static_cast<int64_t>(to_pack.size()),
                      [&](int64_t i, int) { forward.pack(to_pack[static_cast<size_t>(i)]); });
    const auto list = blocks.cut(offsets);
    const int64_t kv_heads = forward.shape.num_kv_heads;
    pool.parallel_for(static_cast<int64_t>(list.size()) * kv_heads, [&](int64_t i, int thread) {
      forward.attend(list[static_cast<size_t>(i / kv_heads)], i % kv_heads, thread);
    });
  });
}

}  // namespace hone::cpu
