#include "ops/transfer/transfer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <optional>
#include <stdexcept>
#include <thread>

#include "core/cpu/thread_pool.h"
#include "kernels/op_testing.h"
#include "ops/add/add.h"
#include "ops/mlp_activation/mlp_activation.h"
#include "ops/start_gradient.h"
#include "tape/host_side.h"

namespace hone {
namespace {

using testing::test_device;

constexpr int64_t kRows = 37, kColumns = 19;

/// Records a function of x and y, both [kRows, kColumns].
using Body = std::function<Var(Tape&, Var x, Var y)>;

struct Result {
  std::vector<float> out, dx, dy;

  bool operator==(const Result&) const = default;
};

/// Runs a body with and without a host side, after dry passes that size the memory.
class Runner {
 public:
  explicit Runner(RecomputePolicy policy = {}) : policy_(policy) {}

  Result run(const Body& body) {
    HostSide host(stream_);
    plan_ = {};
    for (int pass = 0; pass < 2; ++pass) {
      memory_.begin_dry();
      host.begin_dry();
      this->pass(body, host);
    }
    memory_.reserve();
    host.reserve();
    fill(x_, 1);
    fill(y_, 2);
    fill(seed_, 3);
    pass(body, host);
    host.synchronize();
    return {values(out_), values(dx_), values(dy_)};
  }

 private:
  static constexpr size_t kBytes = kRows * kColumns * sizeof(float);

  Tensor of(const Buffer& buffer) const { return buffer.tensor({kRows, kColumns}, DType::kF32); }

  void fill(const Buffer& buffer, uint64_t seed) {
    PhiloxSequence random(seed);
    std::vector<float> values(kRows * kColumns);
    for (float& value : values) value = random.normal();
    stream_.upload(of(buffer), std::move(values));
  }

  std::vector<float> values(const Buffer& buffer) { return stream_.download<float>(of(buffer)); }

  void pass(const Body& body, HostSide& host) {
    const Context context(stream_, memory_.scratch);
    Tape tape(context, memory_, plan_, {.training = true, .recompute = policy_}, &host);
    const Var x = tape.input(of(x_), of(dx_)), y = tape.input(of(y_), of(dy_));
    tape.block([&] {
      const Var out = body(tape, x, y);
      copy(context, tape.data(out), of(out_));
      StartGradient::record(tape, out, of(seed_));
    });
    tape.backward();
  }

  RecomputePolicy policy_;
  ThreadPool pool_{2};
  Buffer x_{test_device(), kBytes}, y_{test_device(), kBytes}, dx_{test_device(), kBytes}, dy_{test_device(), kBytes},
      out_{test_device(), kBytes}, seed_{test_device(), kBytes};
  TapeMemory memory_{test_device()};
  TapePlan plan_;
  testing::TestStream stream_{pool_};
};

Var on_one_side(Tape& tape, Var x, Var y) {
  return add(tape, mlp_activation(tape, {}, mlp_activation(tape, {}, x, y), y), x);
}

/// The same with the products on the host; x is used on both sides.
Var on_both_sides(Tape& tape, Var x, Var y) {
  const std::vector<Var> there = to_host(tape, {x, y});
  Var z;
  tape.on_host([&] { z = mlp_activation(tape, {}, mlp_activation(tape, {}, there[0], there[1]), there[1]); });
  return add(tape, to_device(tape, z), x);
}

void expect_near(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  // Some roundings of numbers below 2^4, and exponentials of two libraries.
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 0x1p-17) << i;
}

TEST(Transfer, ValuesAndGradientsCross) {
  Runner runner;
  const Result here = runner.run(on_one_side), there = runner.run(on_both_sides);
  EXPECT_THAT(here.dx, ::testing::Contains(::testing::Ne(0.0f)));
  expect_near(there.out, here.out);
  expect_near(there.dx, here.dx);
  expect_near(there.dy, here.dy);
}

TEST(Transfer, RecomputationOnEitherSideKeepsEveryBit) {
  const Result kept = Runner().run(on_both_sides);
  EXPECT_EQ(Runner().run(on_both_sides), kept);
  for (const bool on_host : {false, true}) {
    EXPECT_EQ(Runner({.level = RecomputeLevel::kEverything, .on_host = on_host}).run(on_both_sides), kept);
  }
}

/// y = x; fails when its work runs.
struct FailingNode : Node {
  std::string_view kind() const override { return "failing"; }
  void forward(Tape& tape) override {
    tape.context().launch([](ThreadPool&) { throw std::runtime_error("this node failed"); });
  }
  void backward(Tape&) override {}
};

Var failing(Tape& tape, Var x) {
  auto node = std::make_unique<FailingNode>();
  node->inputs = {x};
  const Var y = tape.add_output(*node, tape.shape(x), tape.dtype(x));
  tape.record(std::move(node));
  return y;
}

TEST(Transfer, AFailureOfOneSideEndsBothWithItsCause) {
  const auto message = [](const Body& body) -> std::string {
    try {
      Runner().run(body);
    } catch (const std::exception& error) {
      return error.what();
    }
    return "none";
  };
  EXPECT_EQ(message([](Tape& tape, Var x, Var) {
              Var y = to_host(tape, {x}).front();
              tape.on_host([&] { y = failing(tape, y); });
              return to_device(tape, y);
            }),
            "this node failed");
  if (test_device().kind == DeviceKind::kCuda) return;  // its work are kernels
  EXPECT_EQ(message([](Tape& tape, Var x, Var y) { return on_both_sides(tape, failing(tape, x), y); }),
            "this node failed");
}

TEST(Transfer, BlocksAreQueuedAFewAhead) {
  ThreadPool pool(1);
  testing::TestStream stream(pool);
  HostSide host(stream);
  host.begin_dry();
  host.context().scratch().take({1}, DType::kF32);
  host.reserve();
  std::promise<void> gate;
  host.stream().enqueue([opened = gate.get_future().share()](ThreadPool&) { opened.wait(); });
  constexpr int kBlocks = 40;
  std::atomic<int> entered = 0;
  std::thread queues([&] {
    for (int i = 0; i < kBlocks; ++i, ++entered) host.enter_block();
  });
  while (entered < 8) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(entered, 8);
  gate.set_value();
  queues.join();
  EXPECT_EQ(entered, kBlocks);
  host.synchronize();
}

TEST(Transfer, AValueIsReadOnItsOwnSideOnly) {
  const auto reads_the_other_side = [](Tape& tape, Var x, Var y) {
    tape.on_host([&] { x = add(tape, x, y); });
    return x;
  };
  EXPECT_ANY_THROW(Runner().run(reads_the_other_side));
}

}  // namespace
}  // namespace hone
