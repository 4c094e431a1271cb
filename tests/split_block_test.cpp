// Tests a block whose attention and experts run on different devices: ops run where their weights are, and the caller
// copies activations. The reference is the same block on one CPU stream.
#include <gtest/gtest.h>

#include <cmath>

#include "core/base/philox.h"
#include "core/cpu/thread_pool.h"
#include "core/cuda/cuda_device.h"
#include "core/stream/transfer.h"
#include "nn/attention.h"
#include "nn/feed_forward.h"
#include "ops/add/add.h"
#include "params/parameter_store.h"

namespace hone {
namespace {

constexpr int64_t kHidden = 64, kTokens = 37;

DecoderConfig small_config() {
  DecoderConfig config;
  config.hidden_size = kHidden;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 16;
  config.qk_norm = true;
  config.rope.rotary_dim = 16;
  config.layers = {{.moe = true}};
  config.moe = {.num_experts = 8, .num_experts_per_tok = 2, .moe_intermediate_size = 32, .router = {}};
  return config;
}

std::vector<float> normals(uint64_t key) {
  PhiloxSequence random(key);
  std::vector<float> values(static_cast<size_t>(kTokens * kHidden));
  for (float& value : values) value = random.normal();
  return values;
}

template <class T>
Tensor placed(Buffer& buffer, Device device, const std::vector<T>& values, Shape shape) {
  buffer = Buffer(device, values.size() * sizeof(T));
  const Tensor tensor = buffer.tensor(shape, DTypeOf<T>::value);
  copy_from_host(tensor, values.data(), tensor.bytes());
  return tensor;
}

/// Two packed documents on a device.
struct Batch {
  explicit Batch(Device device) {
    std::vector<int32_t> positions(kTokens);
    for (int32_t t = 0; t < kTokens; ++t) positions[static_cast<size_t>(t)] = t < 20 ? t : t - 20;
    batch.tokens = kTokens;
    batch.documents = 2;
    batch.max_seqlen = 20;
    batch.positions = placed(memory[0], device, positions, {kTokens});
    batch.cu_seqlens = placed<int32_t>(memory[1], device, {0, 20, kTokens}, {3});
    const RopeTableValues values = rope_table_values(rope_frequencies(small_config().rope, kTokens), kTokens);
    rope.turned = {placed(memory[2], device, values.cos, {kTokens, 8}),
                   placed(memory[3], device, values.sin, {kTokens, 8})};
    forward.batch = &batch;
  }

  Buffer memory[4];
  DeviceBatch batch;
  RopeTables rope;
  Forward forward;
};

/// A device with its stream, parameters and memory.
struct Side {
  explicit Side(Device where) : device(where), stream(where, pool), batch(where) {}

  /// Initialises weights so that activations are near 1: otherwise, for example, router scores would have few correct
  /// digits.
  void allocate() {
    store.allocate(device);
    for (Parameter& parameter : store.all()) {
      uint64_t key = 7;
      for (char c : parameter.name()) key = mix_key(key, static_cast<uint8_t>(c));
      PhiloxSequence random(key);
      const float scale = 1.0f / std::sqrt(static_cast<float>(parameter.shape()[-1]));
      std::vector<float> values(static_cast<size_t>(parameter.shape().numel()));
      for (float& value : values)
        value = parameter.shape().rank() == 1 ? 1.0f + 0.1f * random.normal() : scale * random.normal();
      write_values(parameter, 0, values.data(), parameter.shape().numel());
    }
  }

  Device device;
  ThreadPool pool{2};
  Stream stream;
  ParameterStore store;
  Batch batch;
};

/// Adds an external gradient to its input's.
struct Seed : Node {
  Tensor gradient;
  std::string_view kind() const override { return "seed"; }
  bool starts_gradient() const override { return true; }
  void forward(Tape&) override {}
  void backward(Tape& tape) override {
    const GradDest dest = tape.grad_dest(inputs[0]);
    add(tape.context(), {.a = gradient, .b = {}, .y = dest.dst, .beta = dest.beta});
  }
};

/// One block on a tape: two dry passes, then a real one. Backward reads `gradient_of_output`.
class Part {
 public:
  using Body = std::function<Var(Tape&, const std::vector<Var>&)>;

  Part(Side& side, size_t inputs) : side_(side), memory_(side.device), context_(side.stream, memory_.scratch) {
    const size_t bytes = static_cast<size_t>(kTokens * kHidden) * sizeof(float);
    for (size_t i = 0; i < 2 * inputs + 1; ++i) buffers_.emplace_back(side.device, bytes);
    for (size_t i = 0; i < inputs; ++i) {
      inputs_.push_back(tensor(i));
      gradients_.push_back(tensor(inputs + i));
    }
  }

  const Tensor& input(size_t i) const { return inputs_[i]; }
  const Tensor& gradient(size_t i) const { return gradients_[i]; }
  Tensor gradient_of_output() const { return tensor(buffers_.size() - 1); }

  std::vector<float> forward(const Body& body) {
    for (int pass = 0; pass < 3; ++pass) {
      if (pass < 2) memory_.begin_dry();
      if (pass == 2) memory_.reserve();
      side_.store.begin_step();
      tape_.emplace(context_, memory_, plan_, TapeOptions{.training = true, .recompute = {}});
      std::vector<Var> vars;
      for (size_t i = 0; i < inputs_.size(); ++i) vars.push_back(tape_->input(inputs_[i], gradients_[i]));
      Var output;
      tape_->block([&] {
        output = body(*tape_, vars);
        auto seed = std::make_unique<Seed>();
        seed->gradient = gradient_of_output();
        seed->inputs = {output};
        tape_->add_output(*seed, {1}, DType::kF32);
        tape_->record(std::move(seed));
        tape_->expose(output);
      });
      if (pass == 2) return side_.stream.download<float>(tape_->data(output));
      tape_->backward();
      tape_.reset();
    }
    return {};
  }

  void backward() {
    tape_->backward();
    side_.stream.synchronize();
    tape_.reset();
  }

 private:
  Tensor tensor(size_t i) const { return buffers_[i].tensor({kTokens, kHidden}, DType::kF32); }

  Side& side_;
  TapeMemory memory_;
  TapePlan plan_;
  Context context_;
  std::vector<Buffer> buffers_;
  std::vector<Tensor> inputs_, gradients_;
  std::optional<Tape> tape_;
};

struct Results {
  std::vector<float> output, dx;
  std::map<std::string, std::vector<float>> gradients;
};

void read_gradients(Side& side, Results& results) {
  for (const Parameter& parameter : side.store.all()) {
    results.gradients[parameter.name()] = side.stream.download<float>(parameter.gradient().whole());
  }
}

std::vector<float> read(const Tensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.numel()));
  copy_to_host(values.data(), tensor);
  return values;
}

void write(const Tensor& tensor, const std::vector<float>& values) {
  copy_from_host(tensor, values.data(), tensor.bytes());
}

/// y = x + attention(x), z = y + experts(y), all on the CPU.
Results whole_block() {
  Side side(Device{});
  const Attention attention(small_config(), 0, side.store, DType::kF32);
  const MixtureOfExperts experts(small_config(), 0, 0, side.store, DType::kF32);
  side.allocate();
  Part part(side, 1);
  write(part.input(0), normals(1));
  write(part.gradient_of_output(), normals(2));
  Results results;
  results.output = part.forward([&](Tape& tape, const std::vector<Var>& in) {
    const Var y = add(tape, in[0], attention(tape, in[0], side.batch.forward, side.batch.rope));
    return add(tape, y, experts(tape, {.x = y, .residual = y}, side.batch.forward));
  });
  part.backward();
  results.dx = read(part.gradient(0));
  read_gradients(side, results);
  return results;
}

/// The same with attention on `near` and the experts on `far`; activations are copied through the host.
Results split_block(Device near, Device far) {
  Side here(near), there(far);
  const Attention attention(small_config(), 0, here.store, DType::kF32);
  const MixtureOfExperts experts(small_config(), 0, 0, there.store, DType::kF32);
  here.allocate();
  there.allocate();
  Part first(here, 1), middle(there, 1), last(here, 2);
  write(first.input(0), normals(1));
  write(last.gradient_of_output(), normals(2));
  const std::vector<float> y = first.forward([&](Tape& tape, const std::vector<Var>& in) {
    return add(tape, in[0], attention(tape, in[0], here.batch.forward, here.batch.rope));
  });
  write(middle.input(0), y);
  write(last.input(0), y);
  write(last.input(1), middle.forward([&](Tape& tape, const std::vector<Var>& in) {
    return experts(tape, {.x = in[0], .residual = in[0]}, there.batch.forward);
  }));
  Results results;
  results.output = last.forward([](Tape& tape, const std::vector<Var>& in) { return add(tape, in[0], in[1]); });
  last.backward();
  write(middle.gradient_of_output(), read(last.gradient(1)));
  middle.backward();
  std::vector<float> dy = read(last.gradient(0));
  const std::vector<float> through_experts = read(middle.gradient(0));
  for (size_t i = 0; i < dy.size(); ++i) dy[i] += through_experts[i];
  write(first.gradient_of_output(), dy);
  first.backward();
  results.dx = read(first.gradient(0));
  read_gradients(here, results);
  read_gradients(there, results);
  return results;
}

/// About ten consecutive sums of up to 64 products have another order on another device; each has an error of up to
/// 64 · 2^-24 = 4e-6 of its terms.
void expect_close(const std::vector<float>& got, const std::vector<float>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double scale = 0, worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    scale = std::max(scale, std::abs(static_cast<double>(want[i])));
    worst = std::max(worst, std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i])));
  }
  EXPECT_GT(scale, 0.0) << what;
  EXPECT_LE(worst, 4e-5 * scale) << what;
}

void expect_equal_blocks(const Results& got, const Results& want) {
  expect_close(got.output, want.output, "output");
  expect_close(got.dx, want.dx, "gradient of the input");
  ASSERT_EQ(got.gradients.size(), want.gradients.size());
  for (const auto& [name, gradient] : want.gradients) expect_close(got.gradients.at(name), gradient, name);
}

TEST(SplitBlock, ExpertsOnAnotherStreamGiveTheBlocksGradients) {
  expect_equal_blocks(split_block(Device{}, Device{}), whole_block());
}

TEST(SplitBlock, ExpertsOnTheCpuBesideAttentionOnAGpuGiveTheBlocksGradients) {
  if (cuda::device_count() == 0) GTEST_SKIP() << cuda::why_no_device();
  expect_equal_blocks(split_block({DeviceKind::kCuda, 0}, Device{}), whole_block());
}

}  // namespace
}  // namespace hone
