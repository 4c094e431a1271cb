// Compares the bits of whole models, as hashes of logits, gradients and trained weights, with recorded hashes
// (tests/fixtures/bits). A refactoring must not change them. After an intended change, record them again:
//
//   hone_bits_test --record tests/fixtures/bits [--device cuda]
//
// There is one file per instruction set and kind of GPU, since their kernels sum in different orders. A file is valid
// for the compiler in its first line, since the compiler decides which products and sums it contracts.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "app/verify/replay.h"
#include "core/base/checksum.h"
#include "core/base/philox.h"
#include "core/cpu/isa_testing.h"
#include "core/cpu/thread_pool.h"
#include "core/cuda/cuda_device.h"
#include "core/text/json.h"
#include "device_main.h"
#include "models/registry.h"
#include "params/frozen_weights.h"
#include "params/random_weights.h"
#include "session/device_facts.h"

namespace hone {
namespace {

namespace fs = std::filesystem;

/// Lines of a file: a name and a hash.
using Bits = std::map<std::string, std::string>;

std::string compiler() { return "made by " __VERSION__; }

void add(Bits& bits, const std::string& name, std::span<const float> values) {
  bits[name] = fmt::format("{:016x}", Xxh64().update(std::as_bytes(values)).digest());
}

void add(Bits& bits, const std::string& name, const HostTensors& tensors) {
  Xxh64 hash;
  for (const auto& [key, tensor] : tensors) hash.update(key).update(std::as_bytes(std::span(tensor.values)));
  bits[name] = fmt::format("{:016x}", hash.digest());
}

StepData one_batch(const MicroBatch& batch) {
  StepData data;
  data.micro_batches = {batch};
  return data;
}

// -- Reference cases

constexpr size_t kSteps = 3;

/// A case's model in float32 or bfloat16.
class CaseBits {
 public:
  CaseBits(const std::string& name, DType dtype, Stream& stream, Bits& bits)
      : directory_(test_run().fixtures / "goldens" / name),
        golden_(GoldenCase::read(directory_)),
        prefix_(fmt::format("{} {}: ", name, name_of(dtype))),
        dtype_(dtype),
        stream_(stream),
        bits_(bits) {
    for (size_t i = 0; i < kSteps; ++i) batches_.push_back(pack_documents(golden_.batches[i]));
    for (const MicroBatch& batch : batches_) {
      capacity_.max_tokens = std::max(capacity_.max_tokens, batch.tokens());
      capacity_.max_documents = std::max(capacity_.max_documents, batch.documents());
      capacity_.max_seqlen = std::max(capacity_.max_seqlen, batch.max_seqlen);
    }
    capacity_.max_supervised = capacity_.max_tokens;
  }

  void all() {
    {
      Replay replay = load({});
      add(bits_, prefix_ + "logits", replay.logits(batches_[0]));
      train(replay, "full", golden_.full);
    }
    if (golden_.lora_attention) train_adapter("lora_attention", *golden_.lora_attention);
    if (golden_.lora_experts) train_adapter("lora_experts", *golden_.lora_experts);
    if (!golden_.split_adapter) return;
    Replay replay = load(directory_ / "split_adapter");
    add(bits_, prefix_ + "split_adapter logits", replay.logits(batches_[0]));
    train(replay, "split_adapter", golden_.full);
  }

 private:
  Replay load(fs::path adapter) {
    return Replay(directory_ / "model", stream_, capacity_, {.dtype = dtype_, .adapter = std::move(adapter)});
  }

  void train_adapter(const std::string& name, const ReferenceRun& run) {
    Replay replay = load(directory_ / (name + "_init"));
    train(replay, name, run);
  }

  void train(Replay& replay, const std::string& name, const ReferenceRun& run) {
    const double coefficient = golden_.aux ? replay.config().moe.router_aux_loss_coef : 0.0;
    const auto engine = replay.make_engine(coefficient, run.optimizer.options());
    for (size_t i = 0; i < kSteps; ++i) {
      const auto step = static_cast<int64_t>(i);
      engine->accumulate(one_batch(batches_[i]), step);
      if (i == 0) {
        engine->measure();
        add(bits_, prefix_ + name + " gradients", replay.gradients());
        engine->accumulate(one_batch(batches_[i]), step);
      }
      engine->update({run.learning_rate, step});
    }
    add(bits_, prefix_ + name + " weights", replay.values());
  }

  fs::path directory_;
  GoldenCase golden_;
  std::string prefix_;
  DType dtype_;
  Stream& stream_;
  Bits& bits_;
  std::vector<MicroBatch> batches_;
  BatchCapacity capacity_;
};

// -- Models with sizes that select the kernels of long runs

struct SizedModel {
  std::string name, like;  ///< `like`: the case whose config.json is used, with `fields` replaced
  Json fields;
};

std::vector<SizedModel> sized_models() {
  const Json common = {{"hidden_size", 512},           {"intermediate_size", 512},
                       {"moe_intermediate_size", 256}, {"shared_expert_intermediate_size", 256},
                       {"num_attention_heads", 4},     {"num_key_value_heads", 2},
                       {"vocab_size", 2048},           {"initializer_range", 0.05}};
  const auto with = [&](Json more) {
    Json fields = common;
    fields.update(more);
    return fields;
  };
  return {
      {"experts", "qwen3_moe", with({{"head_dim", 128}, {"num_local_experts", 16}, {"num_experts_per_tok", 4}})},
      {"linear attention", "qwen3_next",
       with({{"head_dim", 256}, {"linear_key_head_dim", 128}, {"linear_value_head_dim", 128}})},
      {"windows and sinks", "gpt_oss", with({{"head_dim", 64}, {"intermediate_size", 256}, {"sliding_window", 128}})},
      {"latent attention", "deepseek_v3",
       with({{"kv_lora_rank", 128},
             {"q_lora_rank", 256},
             {"qk_nope_head_dim", 128},
             {"qk_rope_head_dim", 64},
             {"head_dim", 64},
             {"num_key_value_heads", 4},
             {"v_head_dim", 128}})}};
}

enum class Method { kFull, kLora, kLoraInt8 };

TrainableOptions trainable_of(Method method, bool sparse) {
  TrainableOptions trainable;
  if (method == Method::kFull) return trainable;
  trainable.train_base = trainable.train_router = false;
  LoraOptions lora;
  lora.target_modules = {"all-linear"};
  if (sparse) lora.target_modules.push_back("all-experts");
  trainable.lora = lora;
  return trainable;
}

/// Three documents, packed.
MicroBatch documents_of(int64_t vocab_size, int64_t step) {
  PhiloxSequence random(mix_key(7, static_cast<uint64_t>(step)));
  std::vector<LabelledDocument> documents(3);
  for (size_t i = 0; i < documents.size(); ++i) {
    for (size_t token = 0; token < 150 + 60 * i; ++token) {
      documents[i].input_ids.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(vocab_size))));
    }
    documents[i].labels = documents[i].input_ids;
  }
  return pack_documents(documents);
}

HostTensors trainable_values(const ParameterStore& store, Stream& stream, const Tensor& (*tensor)(const Parameter&)) {
  HostTensors values;
  for (const Parameter& parameter : store.all()) {
    if (!parameter.trainable()) continue;
    const Tensor& of = tensor(parameter);
    dispatch_float(of.dtype, [&](auto element) {
      const auto downloaded = stream.download<decltype(element)>(of);
      values[parameter.name()].values.assign(downloaded.begin(), downloaded.end());
    });
  }
  return values;
}

void add_sized(Bits& bits, const SizedModel& model, Method method, Stream& stream) {
  Json json = HfConfig::read(test_run().fixtures / "goldens" / model.like / "model").json();
  json.update(model.fields);
  ParameterStore store;
  Placement placement;
  Decoder decoder(read_decoder_config(HfConfig(json, model.name)), store, placement, DType::kBF16);
  if (method == Method::kLoraInt8) {
    if (!experts_fit(store, int8_format())) return;
    hold_experts_in(store, int8_format(), "expert_weight_dtype");
  }
  set_trainable(store, trainable_of(method, decoder.config().num_moe_layers() > 0));
  EngineOptions options;
  const MicroBatch first = documents_of(decoder.config().vocab_size, 0);
  options.capacity = {first.tokens(), first.documents(), first.tokens(), first.max_seqlen};
  decoder.prepare(stream, first.max_seqlen);
  store.allocate(stream.device());
  {
    Arena scratch(stream.device(), "initialise");
    scratch.reserve(0);
    const Context context(stream, scratch);
    initialise_weights(context, store, decoder.config().initializer_range, 3);
    initialise_lora(context, store, 3);
    stream.synchronize();
  }
  if (method != Method::kFull) order_frozen_weights(store, stream.pool());
  Engine engine(decoder, store, stream, options);
  engine.reserve();
  static const std::map<Method, std::string> kNames = {
      {Method::kFull, "full"}, {Method::kLora, "lora"}, {Method::kLoraInt8, "lora int8"}};
  const std::string prefix = model.name + " " + kNames.at(method) + " ";
  for (int64_t step = 0; step < static_cast<int64_t>(kSteps); ++step) {
    const StepData data = one_batch(documents_of(decoder.config().vocab_size, step));
    engine.accumulate(data, step);
    if (step == 1) {  // B is zero before the first update
      engine.measure();
      add(bits, prefix + "gradients",
          trainable_values(store, stream, [](const Parameter& p) -> const Tensor& { return p.gradient().whole(); }));
      engine.accumulate(data, step);
    }
    engine.update({1e-3, step});
  }
  add(bits, prefix + "weights", trainable_values(store, stream, stepped_value));
}

// -- Files of hashes

std::string hardware_of(const Stream& stream) {
  if (stream.device().kind == DeviceKind::kCpu) return std::string("cpu-") + std::string(name_of(active_isa()));
  const cuda::DeviceInfo info = cuda::device_info(stream.device().index);
  return fmt::format("cuda-sm{}{}", info.major, info.minor);
}

Bits bits_of(Stream& stream) {
  Bits bits;
  for (const Architecture& architecture : architectures()) {
    for (const std::string& name : architecture.cases) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        stream.use_general_kernels(dtype == DType::kF32);
        CaseBits(name, dtype, stream, bits).all();
      }
    }
  }
  stream.use_general_kernels(false);
  for (const SizedModel& model : sized_models()) {
    add_sized(bits, model, Method::kFull, stream);
    add_sized(bits, model, Method::kLora, stream);
    if (!on_gpu()) add_sized(bits, model, Method::kLoraInt8, stream);
  }
  return bits;
}

void record(const fs::path& path, const Bits& bits) {
  std::ofstream file(path);
  file << compiler() << "\n";
  for (const auto& [name, hash] : bits) file << hash << " " << name << "\n";
  ASSERT_TRUE(file.flush().good()) << path;
}

/// Compares the hashes with the file of this hardware, or writes the file.
void expect_recorded_bits(Stream& stream) {
  const std::string name = hardware_of(stream) + ".txt";
  if (!test_run().record.empty()) return record(test_run().record / name, bits_of(stream));
  std::ifstream file(test_run().fixtures / "bits" / name);
  std::string line;
  if (!std::getline(file, line)) GTEST_SKIP() << "no bits are recorded for " << hardware_of(stream);
  if (line != compiler()) GTEST_SKIP() << "the bits of " << name << " were " << line << ", this is " << compiler();
  Bits expected;
  while (std::getline(file, line)) expected[line.substr(17)] = line.substr(0, 16);
  const Bits found = bits_of(stream);
  const auto case_of = [](const std::string& row) { return row.substr(0, row.find(' ')); };
  std::set<std::string> recorded, unrecorded;
  for (const auto& [of, hash] : expected) {
    recorded.insert(case_of(of));
    const auto row = found.find(of);
    EXPECT_EQ(row == found.end() ? "nothing" : row->second, hash) << of;
  }
  // A new case is recorded where the hardware is: until then it has no row of a file at all.
  for (const auto& [of, hash] : found) {
    if (!recorded.contains(case_of(of))) unrecorded.insert(case_of(of));
    EXPECT_TRUE(expected.contains(of) || unrecorded.contains(case_of(of))) << of;
  }
  for (const std::string& name_of_case : unrecorded) fmt::print("{}: no bits are recorded of {}\n", name, name_of_case);
}

class CpuBits : public ::testing::TestWithParam<Isa> {};

TEST_P(CpuBits, AreThoseThatWereRecorded) {
  if (on_gpu()) GTEST_SKIP() << "the device under test is a GPU";
  if (GetParam() > best_isa()) GTEST_SKIP() << "this machine has no " << name_of(GetParam());
  const ForcedIsa forced(GetParam());
  ThreadPool pool(2);
  Stream stream(Device{}, pool);
  expect_recorded_bits(stream);
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, CpuBits,
                         ::testing::Values(Isa::kBaseline, Isa::kAvx2, Isa::kAvx512, Isa::kAmx),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST(GpuBits, AreThoseThatWereRecorded) {
  if (!on_gpu()) GTEST_SKIP() << "the device under test is a CPU";
  ThreadPool pool(2);
  Stream stream(choose_device(test_run().device), pool);
  expect_recorded_bits(stream);
}

}  // namespace
}  // namespace hone
