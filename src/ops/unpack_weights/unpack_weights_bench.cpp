#include "ops/unpack_weights/unpack_weights.h"

#include <fmt/format.h>

#include "core/base/philox.h"
#include "core/stream/profiler.h"
#include "kernels/op_bench.h"

namespace hone {

namespace {

/// The experts of a layer, or its dense MLP: all matrices are copies of one.
OpCase unpack_in(BenchData& data, const char* name, const PackedFormat& format) {
  const BenchSizes& sizes = data.sizes;
  const bool sparse = sizes.experts.count > 0;
  const int64_t matrices = 3 * (sparse ? sizes.experts.count : 1);
  const PackedLayout layout = format.layout(sparse ? sizes.experts.intermediate : sizes.intermediate, sizes.hidden);
  std::vector<float> values(static_cast<size_t>(layout.elements()));
  PhiloxSequence random(1);
  for (float& value : values) value = 0.02f * random.normal();
  std::vector<uint8_t> chunk(static_cast<size_t>(layout.bytes)), chunks;
  format.pack(layout, values.data(), reinterpret_cast<std::byte*>(chunk.data()));
  chunks.reserve(chunk.size() * static_cast<size_t>(matrices));
  for (int64_t i = 0; i < matrices; ++i) chunks.insert(chunks.end(), chunk.begin(), chunk.end());
  const Shape shape{matrices, layout.rows, layout.columns};
  const UnpackWeightsArgs args{layout, data.upload({matrices, layout.bytes}, std::move(chunks)),
                               data.take(shape, sizes.dtype)};
  OpCase result;
  const double bytes = static_cast<double>(args.codes.bytes() + args.dst.bytes());
  result.parts = {{name, fmt::format("[{}, {}, {}]", matrices, layout.rows, layout.columns), name, "", bytes}};
  result.backward = false;
  result.record = [=](Tape& tape) {
    const ProfileScope scope(tape.context(), OpGroup::kMemoryBound, name);
    unpack_weights(tape.context(), args);
    return Var{};
  };
  return result;
}

void add(OpCases& cases, const char* name, const PackedFormat& format) {
  cases.add(OpGroup::kMemoryBound, {name}, [=, &format](BenchData& data) { return unpack_in(data, name, format); });
}

}  // namespace

void unpack_weights_cases(OpCases& cases) {
  if (cases.sizes.experts.count == 0 && cases.sizes.intermediate == 0) return;
  add(cases, "unpack nf4", nf4_format());
  add(cases, "unpack int8", packed_int8_format());
  add(cases, "unpack int4", int4_format(32));
  add(cases, "unpack fp8", fp8_format());
  add(cases, "unpack mxfp4", mxfp4_format());
}

}  // namespace hone
