#include "tape/tape.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "core/cpu/thread_pool.h"
#include "core/stream/profiler.h"

namespace hone {
namespace {

/// Records of the nodes: the number of recomputations, and the results of alias_grad.
struct Log {
  int replays = 0;
  std::vector<bool> aliased;
};

/// Shared by the nodes below: elementwise float32 work on the stream.
struct TestNode : Node {
  Log* log = nullptr;
  void count(const Tape& tape) { log->replays += tape.replaying() ? 1 : 0; }
};

/// y = sin(x); saves x.
struct SinNode : TestNode {
  std::string_view kind() const override { return "sin"; }
  OpGroup group() const override { return OpGroup::kDense; }
  double flops(const Tape& tape) const override { return 7.0 * static_cast<double>(tape.shape(inputs[0]).numel()); }
  RecomputeLevel recomputed_from() const override { return RecomputeLevel::kNorms; }
  void forward(Tape& tape) override {
    count(tape);
    const Tensor x = tape.data(inputs[0]), y = tape.data(outputs[0]);
    tape.context().launch([x, y](ThreadPool&) {
      for (int64_t i = 0; i < x.numel(); ++i) y.as<float>()[i] = std::sin(x.as<float>()[i]);
    });
  }
  void backward(Tape& tape) override {
    const GradDest dx = tape.grad_dest(inputs[0]);
    if (!dx.wanted()) return;
    const Tensor x = tape.data(inputs[0]), dy = tape.grad(outputs[0]);
    tape.context().launch([=](ThreadPool&) {
      for (int64_t i = 0; i < x.numel(); ++i) {
        const float g = std::cos(x.as<float>()[i]) * dy.as<float>()[i];
        dx.dst.as<float>()[i] = g + (dx.beta != 0 ? dx.dst.as<float>()[i] : 0.0f);
      }
    });
  }
};

/// y = a + b; saves nothing, and passes its gradient to a by alias_grad.
struct AddNode : TestNode {
  std::string_view kind() const override { return "add"; }
  RecomputeLevel recomputed_from() const override { return RecomputeLevel::kActivations; }
  void forward(Tape& tape) override {
    count(tape);
    const Tensor a = tape.data(inputs[0]), b = tape.data(inputs[1]), y = tape.data(outputs[0]);
    tape.context().launch([=](ThreadPool&) {
      for (int64_t i = 0; i < y.numel(); ++i) y.as<float>()[i] = a.as<float>()[i] + b.as<float>()[i];
    });
  }
  void backward(Tape& tape) override {
    const Tensor dy = tape.grad(outputs[0]);
    copy_to(tape, tape.grad_dest(inputs[1]), dy);  // before dy becomes a's gradient and changes
    const bool aliased = tape.alias_grad(inputs[0], dy);
    log->aliased.push_back(aliased);
    if (!aliased) copy_to(tape, tape.grad_dest(inputs[0]), dy);
  }
  static void copy_to(Tape& tape, GradDest dest, Tensor dy) {
    if (!dest.wanted()) return;
    tape.context().launch([=](ThreadPool&) {
      for (int64_t i = 0; i < dy.numel(); ++i) {
        dest.dst.as<float>()[i] = dy.as<float>()[i] + (dest.beta != 0 ? dest.dst.as<float>()[i] : 0.0f);
      }
    });
  }
};

/// The sum of x: starts the gradient with ones.
struct SumNode : TestNode {
  std::string_view kind() const override { return "sum"; }
  bool starts_gradient() const override { return true; }
  void forward(Tape& tape) override {
    const Tensor x = tape.data(inputs[0]), y = tape.data(outputs[0]);
    tape.context().launch([=](ThreadPool&) {
      y.as<float>()[0] = 0;
      for (int64_t i = 0; i < x.numel(); ++i) y.as<float>()[0] += x.as<float>()[i];
    });
  }
  void backward(Tape& tape) override {
    const GradDest dx = tape.grad_dest(inputs[0]);
    if (!dx.wanted()) return;
    tape.context().launch([=](ThreadPool&) {
      for (int64_t i = 0; i < dx.dst.numel(); ++i)
        dx.dst.as<float>()[i] = 1 + (dx.beta != 0 ? dx.dst.as<float>()[i] : 0);
    });
  }
};

/// The sum of x with a gradient that it is given.
struct GivenNode : SumNode {
  const std::vector<float>* gradient = nullptr;
  void backward(Tape& tape) override {
    const GradDest dx = tape.grad_dest(inputs[0]);
    tape.context().launch(
        [dx, given = gradient](ThreadPool&) { std::copy(given->begin(), given->end(), dx.dst.as<float>()); });
  }
};

/// Multiples of 1 / kSteps in int8, of float32 values within ±2.
class CoarseFormat : public ValueFormat {
 public:
  static constexpr float kSteps = 60;

  int64_t bytes(const Shape& shape) const override { return shape.numel(); }
  void pack(const Context& context, const Tensor& value, const Tensor& packed) const override {
    HONE_ASSERT(packed.shape == Shape{value.numel()});
    context.launch([=](ThreadPool&) {
      for (int64_t i = 0; i < value.numel(); ++i) packed.as<uint8_t>()[i] = code_of(value.as<float>()[i]);
    });
  }
  void unpack(const Context& context, const Tensor& packed, const Tensor& value) const override {
    context.launch([=](ThreadPool&) {
      for (int64_t i = 0; i < value.numel(); ++i) value.as<float>()[i] = value_of(packed.as<uint8_t>()[i]);
    });
  }
  static float rounded(float value) { return value_of(code_of(value)); }

 private:
  static uint8_t code_of(float value) { return static_cast<uint8_t>(std::lround(value * kSteps) + 128); }
  static float value_of(uint8_t code) { return static_cast<float>(int{code} - 128) / kSteps; }
};

struct Net {
  Tape& tape;
  Log& log;

  template <class N>
  Var record(std::vector<Var> inputs, std::vector<Var> saved, Shape shape, Keep keep) {
    auto node = std::make_unique<N>();
    node->log = &log;
    node->inputs = std::move(inputs);
    node->saved = std::move(saved);
    const Var y = tape.add_output(*node, shape, DType::kF32, keep);
    tape.record(std::move(node));
    return y;
  }
  Var sin(Var x, Keep keep = Keep::kPolicy) { return record<SinNode>({x}, {x}, tape.shape(x), keep); }
  Var add(Var a, Var b) { return record<AddNode>({a, b}, {}, tape.shape(a), Keep::kPolicy); }
  Var sum(Var x) { return record<SumNode>({x}, {}, {1}, Keep::kPolicy); }
  void start(Var x, const std::vector<float>& gradient) {
    auto node = std::make_unique<GivenNode>();
    node->log = &log;
    node->inputs = {x};
    node->gradient = &gradient;
    tape.add_output(*node, {1}, DType::kF32);
    tape.record(std::move(node));
  }
};

using Body = std::function<void(Net&, Var x)>;

/// Records the plan and measures memory with `largest` elements, then runs with any smaller number.
class Runner {
 public:
  Runner(Body body, int64_t largest, RecomputePolicy policy = {}, const ValueFormat* crossing = nullptr,
         bool offload = false)
      : body_(std::move(body)), policy_(policy), crossing_(crossing), x_(Device{}, 1 << 16), dx_(Device{}, 1 << 16) {
    memory.kept.offload(offload);
    pass(largest);
    memory.begin_dry();
    pass(largest);
    measured = memory.bytes();
    boundary_bytes = std::max(memory.boundary[0].high_water(), memory.boundary[1].high_water());
    kept_bytes = memory.kept.bytes();
    memory.reserve();
    log = {};
  }

  std::vector<float> gradient(int64_t n) {
    pass(n);
    return stream_.download<float>(dx_.tensor({n}, DType::kF32));
  }
  /// The gradient for these inputs, in place of those of every pass.
  std::vector<float> gradient(const std::vector<float>& x) {
    given_ = &x;
    return gradient(static_cast<int64_t>(x.size()));
  }

  Stream& stream() { return stream_; }

  Log log;
  TapeMemory memory{Device{}};
  size_t measured = 0, boundary_bytes = 0, kept_bytes = 0;

 private:
  void pass(int64_t n) {
    const Context context(stream_, memory.scratch);
    const Tensor x = x_.tensor({n}, DType::kF32), dx = dx_.tensor({n}, DType::kF32);
    for (int64_t i = 0; i < n; ++i) x.as<float>()[i] = 0.1f * static_cast<float>(i % 17) - 0.5f;
    if (given_ != nullptr) std::copy(given_->begin(), given_->end(), x.as<float>());
    Tape tape(context, memory, plan_, {.training = true, .recompute = policy_, .crossing = crossing_});
    Net net{tape, log};
    body_(net, tape.input(x, dx));
    tape.backward();
    stream_.synchronize();
  }

  Body body_;
  RecomputePolicy policy_;
  const ValueFormat* crossing_;
  const std::vector<float>* given_ = nullptr;
  Buffer x_, dx_;
  TapePlan plan_;
  ThreadPool pool_{1};
  Stream stream_{Device{}, pool_};  // last: its queued work uses the members above
};

/// `blocks` blocks of three sines and a sum of two branches, then a loss.
Body chain(int blocks) {
  return [blocks](Net& net, Var x) {
    for (int i = 0; i < blocks; ++i) {
      net.tape.block([&] {
        const Var a = net.sin(x), b = net.sin(a);
        x = net.add(net.sin(b), a);
      });
    }
    net.tape.block([&] { net.sum(x); });
  };
}

/// The same, with `values[i]` the output of block i where forward ends.
Body noted_chain(int blocks, std::vector<std::vector<float>>& values) {
  return [&values, blocks](Net& net, Var x) {
    values.assign(static_cast<size_t>(blocks), {});
    for (int i = 0; i < blocks; ++i) {
      net.tape.block([&] {
        const Var a = net.sin(x), b = net.sin(a);
        x = net.add(net.sin(b), a);
        net.tape.context().launch([y = net.tape.data(x), &to = values[static_cast<size_t>(i)]](ThreadPool&) {
          to.assign(y.as<float>(), y.as<float>() + y.numel());
        });
      });
    }
    net.tape.block([&] { net.sum(x); });
  };
}

double chain_value(double x, int blocks) {
  for (int i = 0; i < blocks; ++i) {
    const double a = std::sin(x);
    x = std::sin(std::sin(a)) + a;
  }
  return x;
}

TEST(Tape, GradientsAreThoseOfTheFunction) {
  Runner runner(chain(3), 50);
  const std::vector<float> dx = runner.gradient(50);
  for (size_t i = 0; i < dx.size(); ++i) {
    const double x = 0.1f * static_cast<float>(i % 17) - 0.5f, h = 1e-5;
    const double expected = (chain_value(x + h, 3) - chain_value(x - h, 3)) / (2 * h);
    // About twenty float32 roundings of factors below 2^3 in all.
    EXPECT_NEAR(dx[i], expected, 20 * 8 * 0x1p-24 * 8) << i;
  }
}

TEST(Tape, RecomputationGivesTheSameBitsInLessMemory) {
  Runner kept(chain(4), 100), one(chain(4), 100, {RecomputeLevel::kNorms}),
      everything(chain(4), 100, {RecomputeLevel::kEverything});
  const std::vector<float> expected = kept.gradient(100);
  EXPECT_EQ(kept.log.replays, 0);
  EXPECT_EQ(one.gradient(100), expected);
  EXPECT_GT(one.log.replays, 0);
  EXPECT_EQ(everything.gradient(100), expected);
  EXPECT_GT(everything.log.replays, 0);
  EXPECT_LT(everything.kept_bytes, kept.kept_bytes);
}

constexpr RecomputePolicy kRecomputed{RecomputeLevel::kEverything};

TEST(TapeFormat, ForwardIsExactAndBackwardIsThatOfRoundedInputs) {
  const CoarseFormat coarse;
  constexpr int kBlocks = 3;
  constexpr int64_t kCount = 50;
  std::vector<std::vector<float>> exact, values;
  Runner plain(noted_chain(kBlocks, exact), kCount, kRecomputed);
  Runner packed(noted_chain(kBlocks, values), kCount, kRecomputed, &coarse);
  const std::vector<float> of_exact = plain.gradient(kCount), got = packed.gradient(kCount);
  EXPECT_EQ(values, exact);
  // A block after the other, last one first, each on its rounded input with the gradient of the next one.
  std::vector<float> gradient(kCount, 1.0f);
  for (int block = kBlocks; block-- > 0;) {
    std::vector<float> input;
    for (int64_t i = 0; i < kCount; ++i) {
      const auto at = static_cast<size_t>(i);
      input.push_back(block == 0 ? 0.1f * static_cast<float>(i % 17) - 0.5f
                                 : CoarseFormat::rounded(exact[static_cast<size_t>(block) - 1][at]));
    }
    Runner one(
        [&](Net& net, Var x) {
          net.tape.block([&] {
            const Var a = net.sin(x), b = net.sin(a);
            net.start(net.add(net.sin(b), a), gradient);
          });
        },
        kCount, kRecomputed);
    gradient = one.gradient(input);
  }
  EXPECT_EQ(got, gradient);
  // f(x) = sin sin sin x + sin x has |f'| <= 2 and |f''| <= 4. Inputs of two blocks are rounded, by half a step each.
  float largest = 0;
  for (size_t i = 0; i < got.size(); ++i) largest = std::max(largest, std::fabs(got[i] - of_exact[i]));
  EXPECT_LE(largest, 2 * 4 * 2 * 2 * 0.5f / CoarseFormat::kSteps);
  EXPECT_GT(largest, 0) << "nothing was rounded";
}

TEST(TapeFormat, KeepsItsBytesAtEveryLevelAndNoMoreOfGradients) {
  const CoarseFormat coarse;
  constexpr int64_t kCount = 1024, kBlocks = 5;
  for (const RecomputeLevel level :
       {RecomputeLevel::kNone, RecomputeLevel::kActivations, RecomputeLevel::kEverything}) {
    Runner plain(chain(kBlocks), kCount, {level}), packed(chain(kBlocks), kCount, {level}, &coarse);
    EXPECT_EQ(plain.kept_bytes - packed.kept_bytes, kBlocks * kCount * 3) << "a byte instead of four";
    EXPECT_EQ(packed.boundary_bytes, plain.boundary_bytes);
    EXPECT_LE(packed.measured, plain.measured - kBlocks * kCount * 3 + kCount * 4) << "a block's input is unpacked";
    EXPECT_EQ(packed.gradient(kCount).size(), static_cast<size_t>(kCount));
  }
}

TEST(TapeFormat, GivesTheSameBitsInHostMemoryAndOfSmallerBatches) {
  const CoarseFormat coarse;
  constexpr int64_t kCount = 4096;
  Runner here(chain(7), kCount, kRecomputed, &coarse), there(chain(7), kCount, kRecomputed, &coarse, true);
  EXPECT_EQ(there.memory.kept.host_bytes(), size_t{7 * kCount});
  for (const int64_t count : {int64_t{1}, int64_t{1000}, kCount, int64_t{7}}) {
    EXPECT_EQ(there.gradient(count), here.gradient(count)) << count;
  }
}

TEST(TapeFormat, CountsAndProfilesItsWork) {
  const CoarseFormat coarse;
  const Runner plain(chain(2), 10, kRecomputed);
  Runner packed(chain(2), 10, kRecomputed, &coarse);
  EXPECT_EQ(packed.memory.work.forward.bytes - plain.memory.work.forward.bytes, 2 * 50.0);
  EXPECT_EQ(packed.memory.work.recompute.bytes - plain.memory.work.recompute.bytes, 50.0)
      << "the last block reads no value";
  std::vector<ProfileSpan> spans;
  {
    Profiler profiler(packed.stream());
    packed.gradient(10);
    spans = profiler.take().spans;
  }
  double bytes = 0;
  for (const ProfileSpan& span : spans) bytes += span.name == "layer_inputs" ? span.bytes : 0;
  EXPECT_EQ(bytes, 3 * 50.0);
}

TEST(TapeFormat, LeavesWhatIsKeptAlways) {
  const CoarseFormat coarse;
  const auto body = [](Net& net, Var x) {
    net.tape.block([&] { x = net.sin(x, Keep::kAlways); });
    net.tape.block([&] { net.sum(net.sin(x)); });
  };
  Runner plain(body, 20, kRecomputed), packed(body, 20, kRecomputed, &coarse);
  EXPECT_EQ(packed.gradient(20), plain.gradient(20));
  EXPECT_EQ(packed.kept_bytes, plain.kept_bytes);
}

TEST(Tape, ADryPassCountsItsWork) {
  const Runner kept(chain(2), 10), recomputed(chain(2), 10, {RecomputeLevel::kNorms});
  const double sine = 7 * 10;
  for (const Runner* runner : {&kept, &recomputed}) {
    EXPECT_EQ(runner->memory.work.forward.flops, 6 * sine) << "of one pass";
    EXPECT_EQ(runner->memory.work.backward.flops, 6 * sine) << "no weights";
    EXPECT_GT(runner->memory.work.backward.bytes, runner->memory.work.forward.bytes);
  }
  EXPECT_EQ(kept.memory.work.recompute.flops, 0);
  EXPECT_EQ(recomputed.memory.work.recompute.flops, 4 * sine) << "two values of each block";
  EXPECT_EQ(recomputed.memory.work.recompute.bytes, 4 * 2 * 4 * 10.0);
}

TEST(Tape, AProfilerSeesEveryRunOfEveryNode) {
  Runner runner(chain(2), 10, {RecomputeLevel::kEverything});
  std::vector<ProfileSpan> spans;
  {
    Profiler profiler(runner.stream());
    runner.gradient(10);
    spans = profiler.take().spans;
  }
  std::map<std::pair<std::string_view, std::string_view>, int> count;
  std::map<std::string_view, double> bytes_of_sin, flops_of_sin;
  for (const ProfileSpan& span : spans) {
    ++count[{span.name, span.pass}];
    EXPECT_LE(span.begin, span.end);
    EXPECT_EQ(span.group, span.name == "sin" ? OpGroup::kDense : OpGroup::kMemoryBound);
    if (span.name == "sum") {
      EXPECT_EQ(span.flops, 0);
    }
    if (span.name != "sin") continue;
    bytes_of_sin[span.pass] = span.bytes;
    flops_of_sin[span.pass] = span.flops;
  }
  EXPECT_EQ((count[{"block", "forward"}]), 3);
  EXPECT_EQ((count[{"block", "backward"}]), 3);
  EXPECT_EQ((count[{"sin", "forward"}]), 6);
  EXPECT_EQ((count[{"sin", "backward"}]), 6);
  EXPECT_EQ((count[{"sin", "recompute"}]), runner.log.replays);
  EXPECT_EQ((count[{"sum", "backward"}]), 1);
  // Forward reads and writes ten floats; backward reads the input and one gradient and writes one.
  EXPECT_EQ(bytes_of_sin, (std::map<std::string_view, double>{{"forward", 80}, {"recompute", 80}, {"backward", 120}}));
  EXPECT_EQ(flops_of_sin, (std::map<std::string_view, double>{{"forward", 70}, {"recompute", 70}, {"backward", 0}}));
}

TEST(Tape, WhatIsKeptAlwaysIsNotRunAgain) {
  const auto body = [](Keep keep) {
    return [keep](Net& net, Var x) { net.tape.block([&] { net.sum(net.sin(net.sin(x, keep))); }); };
  };
  Runner policy(body(Keep::kPolicy), 10, {RecomputeLevel::kEverything}),
      always(body(Keep::kAlways), 10, {RecomputeLevel::kEverything});
  EXPECT_EQ(policy.gradient(10), always.gradient(10));
  EXPECT_EQ(policy.log.replays, 1);
  EXPECT_EQ(always.log.replays, 0);
}

TEST(Tape, GradientsAtBordersTakeTurnsInTwoArenas) {
  Runner shallow(chain(2), 64), deep(chain(9), 64);
  EXPECT_EQ(shallow.boundary_bytes, 64 * sizeof(float));  // one value per buffer for any number of blocks
  EXPECT_EQ(deep.boundary_bytes, shallow.boundary_bytes);
  EXPECT_GT(deep.kept_bytes, shallow.kept_bytes);
}

TEST(Tape, AValueMayBeUsedInTheNextBlockAndNotBeyond) {
  const auto skip = [](int distance) {
    return [distance](Net& net, Var x) {
      Var early, last;
      net.tape.block([&] { early = last = net.sin(x); });
      for (int i = 1; i < distance; ++i) net.tape.block([&] { last = net.sin(last); });
      net.tape.block([&] { net.sum(net.add(last, early)); });
    };
  };
  EXPECT_NO_THROW(Runner(skip(1), 8));
  EXPECT_ANY_THROW(Runner(skip(2), 8));
}

TEST(Tape, AGradientIsGivenAwayOnceAndOnlyWithinItsBlock) {
  // add(a, a): a has a gradient from the second operand when alias_grad is called for the first.
  Runner twice(
      [](Net& net, Var x) {
        net.tape.block([&] {
          const Var a = net.sin(x);
          net.sum(net.add(a, a));
        });
      },
      8);
  const std::vector<float> dx = twice.gradient(8);
  EXPECT_EQ(twice.log.aliased, std::vector<bool>{false});
  for (size_t i = 0; i < dx.size(); ++i) EXPECT_EQ(dx[i], 2 * std::cos(0.1f * static_cast<float>(i) - 0.5f));

  Runner inside([](Net& net, Var x) { net.tape.block([&] { net.sum(net.add(net.sin(x), net.sin(x))); }); }, 8);
  inside.gradient(8);
  EXPECT_EQ(inside.log.aliased, std::vector<bool>{true});

  Runner across(
      [](Net& net, Var x) {
        Var a;
        net.tape.block([&] { a = net.sin(x); });
        net.tape.block([&] { net.sum(net.add(a, net.sin(a))); });
      },
      8);
  across.gradient(8);
  EXPECT_EQ(across.log.aliased, std::vector<bool>{false});
}

TEST(Tape, ALaterUseAddsToAGradientThatWasGivenAway) {
  // b's gradient is the sum's tensor; the sine adds its part in place.
  Runner runner(
      [](Net& net, Var x) {
        net.tape.block([&] {
          const Var b = net.sin(x);
          net.sum(net.add(b, net.sin(b)));
        });
      },
      5);
  const std::vector<float> dx = runner.gradient(5);
  for (size_t i = 0; i < dx.size(); ++i) {
    const float x = 0.1f * static_cast<float>(i) - 0.5f;
    EXPECT_NEAR(dx[i], (1 + std::cos(std::sin(x))) * std::cos(x), 8 * 0x1p-24);
  }
}

TEST(Tape, ASmallerBatchNeverNeedsMoreThanThePlan) {
  for (const RecomputePolicy& policy :
       {RecomputePolicy{}, RecomputePolicy{RecomputeLevel::kNorms}, RecomputePolicy{RecomputeLevel::kActivations},
        RecomputePolicy{RecomputeLevel::kEverything}}) {
    Runner runner(chain(5), 64 * 64, policy);
    for (int64_t n : {1, 7, 64, 65, 1000, 64 * 64}) EXPECT_NO_THROW(runner.gradient(n)) << n;
    EXPECT_ANY_THROW(runner.gradient(64 * 64 + 1));
    EXPECT_LE(runner.measured, runner.memory.bytes());
  }
}

struct CountingResidency : Residency {
  int acquired = 0, released = 0;
  void acquire(const Context&, Use) override { ++acquired; }
  void release(const Context&, Use) override { ++released; }
};

TEST(Tape, AResidencyIsAcquiredOnceForwardAndOnceBackwardAndAlwaysReleased) {
  CountingResidency residency;
  Runner runner(
      [&](Net& net, Var x) {
        net.tape.block([&] {
          Var y;
          net.tape.with(residency, [&] { y = net.sin(net.sin(x)); });
          net.sum(y);
        });
      },
      4, {RecomputeLevel::kEverything});
  residency = {};
  runner.gradient(4);
  EXPECT_EQ(residency.acquired, 2);
  EXPECT_EQ(residency.released, 2);
}

TEST(Tape, WithoutGradientsValuesLiveThroughTheNextBlockOrWhereExposed) {
  ThreadPool pool(1);
  Stream stream(Device{}, pool);
  TapeMemory memory{Device{}};
  TapePlan plan;
  Log log;
  const Buffer bytes(Device{}, 64);
  const Tensor x = bytes.tensor({16}, DType::kF32);
  x.as<float>()[3] = 1.0f;
  for (const bool real : {false, true}) {
    const Context context(stream, memory.scratch);
    Tape tape(context, memory, plan, {});
    Net net{tape, log};
    const Var in = tape.input(x);
    Var inner, exposed;
    tape.block([&] {
      inner = net.sin(in);
      exposed = net.sin(inner);
    });
    tape.expose(exposed);
    EXPECT_FALSE(tape.requires_grad(exposed));
    EXPECT_ANY_THROW(tape.backward());
    if (!real) {
      memory.reserve();
      continue;
    }
    EXPECT_ANY_THROW(tape.data(inner));
    EXPECT_EQ(stream.download<float>(tape.data(exposed))[3], std::sin(std::sin(1.0f)));
  }
}

}  // namespace
}  // namespace hone
