#include "optim/state_stream.h"

#include <gtest/gtest.h>

#include <cstring>

#include "core/base/philox.h"
#include "core/cpu/thread_pool.h"
#include "core/stream/transfer.h"
#include "ops/adamw/adamw.h"
#include "ops/adamw/dynamic_code.h"

namespace hone {
namespace {

struct State {
  State(int64_t elements, DType parameter_dtype, DType m_dtype, DType v_dtype) : n(elements) {
    parameter = memory(n, parameter_dtype);
    working_copy = parameter_dtype == DType::kF32 ? memory(n, DType::kBF16) : Tensor{};
    gradient = memory(n, DType::kF32);
    const auto moment = [&](DType dtype) {
      return Moment{memory(n, dtype),
                    size_of(dtype) == 1 ? memory((n + kMomentBlock - 1) / kMomentBlock, DType::kF32) : Tensor{}};
    };
    m = moment(m_dtype);
    v = moment(v_dtype);
    PhiloxSequence random(static_cast<uint64_t>(n));
    for (int64_t i = 0; i < n; ++i) gradient.as<float>()[i] = random.normal();
  }

  Tensor memory(int64_t elements, DType dtype) {
    buffers.emplace_back(Device{}, static_cast<size_t>(elements) * size_of(dtype));
    return buffers.back().tensor({elements}, dtype);
  }
  AdamwTensor tensor() const {
    return {.parameter = parameter,
            .working_copy = working_copy,
            .m = m,
            .v = v,
            .gradient = gradient,
            .weight_decay = 0.1,
            .stream_id = 7};
  }
  std::vector<std::byte> bytes() const {
    std::vector<std::byte> all;
    for (const Buffer& buffer : buffers) all.insert(all.end(), buffer.data(), buffer.data() + buffer.size());
    return all;
  }

  int64_t n;
  std::vector<Buffer> buffers;
  Tensor parameter, working_copy, gradient;
  Moment m, v;
};

std::vector<StateStream::Field> fields(AdamwTensor& t) {
  return {{&t.parameter},
          {&t.working_copy, 1, false},
          {&t.m.values},
          {&t.m.scales, kMomentBlock},
          {&t.v.values},
          {&t.v.scales, kMomentBlock},
          {&t.gradient, 1, true, false}};
}

/// The bytes of tensors of several sizes after three steps, in one call or in pieces.
std::vector<std::byte> stepped(DType parameter, DType m, DType v, bool in_pieces) {
  ThreadPool pool(2);
  Stream stream(Device{}, pool);
  std::vector<State> states;
  for (const int64_t n : {1, 255, 256, 2048, 5000}) states.emplace_back(n, parameter, m, v);
  StepScalars scalars;
  scalars.learning_rate = 0.01f;
  scalars.bias_correction1 = scalars.bias_correction2 = 0.5f;
  scalars.clip_coefficient = 0.9f;
  scalars.seed = 3;
  AdamwArgs args{.tensors = {}, .scalars = &scalars};
  std::vector<AdamwTensor> tensors;
  for (const State& state : states) tensors.push_back(state.tensor());
  StateStream host(Device{}, 1024, true);
  Arena scratch(Device{}, "scratch");
  const auto run = [&](const Context& context) {
    host.step(context, tensors, fields, [&](std::vector<AdamwTensor> some) {
      args.tensors = std::move(some);
      adamw(context, args);
    });
  };
  scratch.begin_dry();
  run(Context(stream, scratch));
  scratch.reserve(scratch.high_water());
  const Context context(stream, scratch);
  for (int step = 0; step < 3; ++step) {
    if (in_pieces) {
      run(context);
    } else {
      args.tensors = tensors;
      adamw(context, args);
    }
  }
  stream.synchronize();
  std::vector<std::byte> all;
  for (const State& state : states) {
    const std::vector<std::byte> bytes = state.bytes();
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return all;
}

TEST(StateStream, StepsPiecesAsTheWhole) {
  for (const DType parameter : {DType::kF32, DType::kBF16}) {
    for (const DType m : {DType::kF32, DType::kBF16, DType::kI8}) {
      const DType v = m == DType::kI8 ? DType::kU8 : m;
      EXPECT_EQ(stepped(parameter, m, v, true), stepped(parameter, m, v, false))
          << name_of(parameter) << ", " << name_of(m);
    }
  }
}

}  // namespace
}  // namespace hone
