#include <fmt/format.h>

#include "kernels/op_bench.h"
#include "ops/packed_bench.h"
#include "ops/ssd_scan/ssd_scan.h"

namespace hone {

namespace {

OpCase scan_over_documents(BenchData& data) {
  const BenchSizes& sizes = data.sizes;
  const SsdHeads heads{.num_heads = sizes.ssd.heads,
                       .head_dim = sizes.ssd.head_dim,
                       .num_groups = sizes.ssd.groups,
                       .state_size = sizes.ssd.state_size};
  const auto xbc = data.input(heads.width()), dt = data.input(heads.num_heads);
  const auto weight = [&]() -> Weight& { return data.weight({heads.num_heads}, sizes.dtype, true); };
  Weight &a_log = weight(), &dt_bias = weight(), &d = weight();
  const PackedSequences sequences = packed_documents(data);
  // Per token and head, products with a chunk's other tokens: C·B and P V; and with the state: C S and B V. Backward
  // has three like C·B, two like P V, and five with states.
  const auto state = static_cast<double>(heads.state_size * heads.head_dim);
  const double chunk_keys = static_cast<double>(kSsdChunk) * static_cast<double>(heads.state_size);
  const double chunk_values = static_cast<double>(kSsdChunk) * static_cast<double>(heads.head_dim);
  const double pairs = 2.0 * static_cast<double>(sizes.tokens * heads.num_heads);
  const double bytes = sizes.bytes(heads.width() + heads.inner());
  const std::string shape = fmt::format("{} × {}, {} heads of {}, state {}", sequences.num_documents, sizes.seq,
                                        heads.num_heads, heads.head_dim, heads.state_size);
  OpCase result;
  result.parts = {{.name = "ssd_scan",
                   .shape = shape,
                   .span = "ssd_scan",
                   .pass = "forward",
                   .bytes = bytes,
                   .flops = pairs * (chunk_keys + chunk_values + 2 * state)},
                  {.name = "ssd_scan grad",
                   .shape = shape,
                   .span = "ssd_scan",
                   .pass = "backward",
                   .bytes = 2 * bytes,
                   .flops = pairs * (3 * chunk_keys + 2 * chunk_values + 5 * state)}};
  result.record = [=, &a_log, &dt_bias, &d](Tape& tape) {
    return ssd_scan(tape, {xbc(tape), dt(tape), &a_log, &dt_bias, &d}, heads, sequences);
  };
  result.gradient = data.activations(heads.inner());
  return result;
}

}  // namespace

void ssd_scan_cases(OpCases& cases) {
  if (cases.sizes.ssd.heads == 0) return;
  cases.add(OpGroup::kAttention, {"ssd_scan", "ssd_scan grad"}, scan_over_documents);
}

}  // namespace hone
